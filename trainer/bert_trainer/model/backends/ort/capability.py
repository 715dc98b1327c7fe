"""Whether ONNX Runtime can execute a run's model here: what is installed, the device, the precision."""

from __future__ import annotations

import importlib
import importlib.metadata
import warnings
from pathlib import Path
from types import ModuleType

import torch

from bert_trainer.errors import EngineUnusable, UnsupportedPrecision

_PACKAGE = "onnxruntime-training"
_RELEASE = "1.19.2"
"""The last one with ORTModule; ``engine`` reaches into it where it has no setting."""
_ON_PROCESSORS = ("fp32", "avx-fp32")
_HINT = (
    "use the trainer image with ONNX Runtime (images/README.md: trainer-ort) or, without a cluster, the environment "
    "that tools/ort.sh makes; engine: eager runs in every image"
)


def check_engine(device: torch.device, precision: str) -> None:
    """Check what a run with ``engine: ort`` needs, before anything is allocated.

    Raises:
        EngineUnusable: it is not installed, is of another release, or has no half for this device.
        UnsupportedPrecision: ONNX Runtime has no kernels for it.
    """
    check_installed()
    if device.type == "cuda":
        _check_gpu_half()
    elif precision not in _ON_PROCESSORS:
        raise UnsupportedPrecision(
            f"precision: got {precision!r}; allowed with engine 'ort' on processors: {' or '.join(_ON_PROCESSORS)}, "
            "since there ONNX Runtime multiplies no matrices in bf16, and those of fp16 in fp32",
            hint="change spec.precision, or write engine: eager, which computes in bf16 as well",
        )


def check_installed() -> None:
    """Check that ORTModule can be imported and has its extensions.

    Raises:
        EngineUnusable: it cannot.
    """
    try:
        found = importlib.metadata.version(_PACKAGE)
    except importlib.metadata.PackageNotFoundError:
        raise EngineUnusable(f"engine: got 'ort'; {_PACKAGE} {_RELEASE} is not installed here", hint=_HINT) from None
    if found != _RELEASE:
        raise EngineUnusable(f"engine: got 'ort'; allowed: with {_PACKAGE} {_RELEASE}, here is {found}", hint=_HINT)
    try:
        ortmodule = import_ortmodule()
    except (ImportError, AttributeError, RuntimeError) as error:
        # What a newer torch has renamed is missed as a module or as an attribute.
        reason = str(error).strip().splitlines()[0]
        raise EngineUnusable(
            f"engine: got 'ort'; {_PACKAGE} {found} does not work with torch {torch.__version__} ({reason})", hint=_HINT
        ) from error
    if not list(_extensions(ortmodule).glob("aten_op_executor*.so")):
        raise EngineUnusable(
            f"engine: got 'ort'; {_extensions(ortmodule)} lacks ORTModule's extensions for torch {torch.__version__}",
            hint=f"run images/trainer/locks/build_ort_extensions.py with this Python, or {_HINT}",
        )


def import_ortmodule() -> ModuleType:
    """Import ORTModule's package, which changes ``torch.manual_seed``: nothing else here does."""
    with warnings.catch_warnings():
        # A wheel made for CUDA warns on machines without it.
        warnings.filterwarnings("ignore", message="WARNING: failed to get cudart_version")
        return importlib.import_module("onnxruntime.training.ortmodule")


def _check_gpu_half() -> None:
    ortmodule = import_ortmodule()
    made_for, torch_s = ortmodule.ONNXRUNTIME_CUDA_VERSION, torch.version.cuda
    if made_for is None or torch_s is None or made_for.split(".")[0] != torch_s.split(".")[0]:
        raise EngineUnusable(
            f"engine: got 'ort' on a GPU; {_PACKAGE} here is made for CUDA {made_for}, torch for CUDA {torch_s}; "
            "allowed: the same major release",
            hint="train with engine: eager on GPUs, with device: cpu, or in an image with wheels of both for one CUDA",
        )
    if not list(_extensions(ortmodule).glob("torch_gpu_allocator*.so")):
        raise EngineUnusable(
            f"engine: got 'ort' on a GPU; {_extensions(ortmodule)} lacks torch_gpu_allocator, by which both share "
            "gpu_memory_limit_gib",
            hint="build it with CUDA's compiler, by python -m "
            "onnxruntime.training.ortmodule.torch_cpp_extensions.install, or train with engine: eager",
        )


def _extensions(ortmodule: ModuleType) -> Path:
    return Path(ortmodule.ORTMODULE_TORCH_CPP_DIR)


def describe_engine() -> str:
    """Return what executes training passes, in a few words."""
    return f"engine ort: {_PACKAGE} {importlib.metadata.version(_PACKAGE)}, torch {torch.__version__}"
