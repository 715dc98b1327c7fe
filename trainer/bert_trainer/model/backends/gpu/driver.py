"""Why PyTorch finds no GPU: an image without CUDA, a container without a driver, a driver that is too old or broken.

Asked of the driver itself (CUDA driver API, cuInit and its error codes), because ``torch.cuda.is_available`` only says
no, and whatever comes after it fails with a stack.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping
from dataclasses import dataclass

LIBRARY = "libcuda.so.1"

_NO_DEVICE, _TOO_OLD = 100, 35
_ERRORS = {
    3: "not initialized: the device files of the card cannot be opened",
    802: "the system is not ready: on servers with NVSwitch, is nvidia-fabricmanager running?",
    803: "the driver's library and its kernel module have different versions; the node has to be restarted",
    804: "its compatibility library does not support this card",
    999: "unknown; the node's kernel log says more (`dmesg`, lines with NVRM)",
}
_DRIVER_HINT = (
    "check that the node offers GPUs (`kubectl describe node`) and that its container runtime adds the driver; where "
    "nvidia is not the default runtime class, set spec.scheduling.runtimeClassName: nvidia; without a cluster install "
    "NVIDIA's driver, or use device 'cpu' or 'auto'"
)
_IMAGE_HINT = (
    "use an image that was built with ACCELERATOR=cuda (images/README.md); without a cluster install a PyTorch with "
    "CUDA, or use device 'cpu' or 'auto'"
)


@dataclass(frozen=True, slots=True)
class Driver:
    """What the driver of this container answers."""

    code: int
    """Of cuInit; 0: it works."""
    version: int
    """Newest CUDA that it runs, 13020 for 13.2; 0: it does not say."""


def ask_driver() -> Driver | None:
    """Return what the driver says; None if the container has none."""
    try:
        library = ctypes.CDLL(LIBRARY)
    except OSError:
        return None
    version = ctypes.c_int()
    library.cuDriverGetVersion(ctypes.byref(version))
    return Driver(library.cuInit(0), version.value)


def explain_missing_gpu(
    built_for: str | None, environment: Mapping[str, str], ask: Callable[[], Driver | None] = ask_driver
) -> tuple[str, str]:
    """Return why there is no GPU, and what to do next.

    Args:
        built_for: The release of CUDA that PyTorch was made for, such as 13.2; None: made without.
        environment: Of this process.
        ask: Returns the driver.
    """
    if built_for is None:
        return "this image's PyTorch was made without CUDA", _IMAGE_HINT
    driver = ask()
    if driver is None:
        return f"the container has no NVIDIA driver ({LIBRARY})", _DRIVER_HINT
    newest = f"{driver.version // 1000}.{driver.version % 1000 // 10}"
    if driver.code == _TOO_OLD or driver.version and driver.version // 1000 < int(built_for.partition(".")[0]):
        return (
            f"the node's driver runs CUDA up to {newest}, and this PyTorch was made for {built_for}",
            f"update the driver, choose other nodes, or use an image made for CUDA {newest} (images/README.md)",
        )
    if driver.code in (0, _NO_DEVICE):
        visible = environment.get("CUDA_VISIBLE_DEVICES")
        if visible is not None:
            return (
                f"CUDA_VISIBLE_DEVICES is {visible!r}, which leaves none",
                "take the variable out of spec.env and of the image: the device plugin says which GPUs are a pod's",
            )
        return "the driver shows no device", _DRIVER_HINT
    return f"the driver reports error {driver.code} ({_ERRORS.get(driver.code, 'see cuda.h')})", _DRIVER_HINT
