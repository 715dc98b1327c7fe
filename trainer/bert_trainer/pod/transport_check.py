"""Refuses a transport that a job's environment asks for and its pod does not have, before MPI or NCCL meets it.

Open MPI and Intel MPI abort on it with a stack that names neither the variable nor the remedy; NCCL and MPICH take TCP
without a word, and are slow. Judged are variables that have an effect here: UCX's where UCX carries MPI's
messages, NCCL's where the pod has a GPU, those of networks alone where ranks are in several pods. A list is refused
where no word of it can be used. What each does, and how to see that it acts: docs/concepts/network.md.

Sources: Open MPI 5.0.11, MPICH 5.0.2, Intel MPI 2021.17 and UCX 1.20 as they behaved (docs/concepts/network.md);
NCCL 2.30's user guide, "Environment Variables".
"""

from __future__ import annotations

import ipaddress
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from bert_trainer.errors import TransportUnusable
from bert_trainer.pod.transports import MIN_LOCKED_BYTES, Transports, find_missing, format_bytes
from bert_trainer.system.mpi_variables import read_local_size, read_size

# Transports of UCX that are InfiniBand's, whatever their variant (rc_mlx5, ud_verbs, dc_x).
_UCX_VERBS = re.compile(r"(ib|rc|ud|dc)(_\w+)?")
# Those that stay in a pod.
_UCX_LOCAL = re.compile(r"self|loopback|sm|shm|mm|posix|sysv|cma|knem|xpmem|cuda\w*|gdr_copy|rocm\w*")
_OFI_VERBS = ("verbs", "mlx", "efa")
# Open MPI's UCX looks for the cards of these makers unless the two variables say otherwise.
_UCX_SUPPORT = ("OMPI_MCA_opal_common_ucx_devices", "OMPI_MCA_opal_common_ucx_tls")
_NO_TCP = "leave the variable out: ranks then talk over TCP"
_GIVE_CARDS = (
    "give spec.resources.rdma the resource name that `kubectl describe node` shows of the card's device plugin, or "
    f"{_NO_TCP}"
)
_OMPI_INFO_TIMEOUT_S = 20


def check_transports(
    found: Transports,
    environment: Mapping[str, str],
    host: str,
    *,
    has_ucx: Callable[[], bool] | None = None,
) -> None:
    """Check that everything the environment asks for is there.

    Args:
        found: What the pod has.
        environment: Of a rank, with the variables of its launcher.
        host: The pod's name, for messages.
        has_ucx: Returns whether Open MPI was built with UCX; None: it is asked.

    Raises:
        TransportUnusable: Something is not there.
    """
    mpi = _mpi_of(environment)
    if mpi == "OpenMPI":
        _check_open_mpi(found, environment, host, has_ucx or open_mpi_has_ucx)
    elif mpi == "Intel":
        _check_intel_mpi(found, environment, host)
    if _uses_ucx(mpi, environment):
        _check_ucx(found, environment, host)
    if found.has_gpu:
        _check_nccl(found, environment, host)


def _mpi_of(environment: Mapping[str, str]) -> str | None:
    if "OMPI_COMM_WORLD_RANK" in environment:
        return "OpenMPI"
    if "PMI_RANK" not in environment:
        return None
    return "Intel" if "I_MPI_HYDRA_UUID" in environment else "MPICH"


def _uses_ucx(mpi: str | None, environment: Mapping[str, str]) -> bool:
    if mpi == "OpenMPI":
        return environment.get("OMPI_MCA_pml") == "ucx"
    # PyPI's MPICH sends by UCX unless it is told to use libfabric.
    return (
        mpi == "MPICH"
        and environment.get("MPIR_CVAR_CH4_NETMOD", "ucx") == "ucx"
        or (mpi == "Intel" and _ofi_provider(environment)[1] == "mlx")
    )


def _check_open_mpi(found: Transports, environment: Mapping[str, str], host: str, has_ucx: Callable[[], bool]) -> None:
    if environment.get("OMPI_MCA_pml") == "ucx":
        if not has_ucx():
            raise TransportUnusable(
                "OMPI_MCA_pml: got 'ucx'; allowed: ob1 or nothing, since this image's Open MPI was built without UCX",
                hint="take an image whose `ompi_info` lists pml: ucx, as the trainer's does, or leave the variable out",
            )
        if not any(environment.get(name) for name in _UCX_SUPPORT):
            _require_card(found, host, "OMPI_MCA_pml", "ucx")
        return
    # With another pml the variable concerns Open MPI's own TCP.
    if _sends_by_btl_tcp(environment) and not _is_one_pod(environment):
        _require_interface(found, host, environment, "OMPI_MCA_btl_tcp_if_include")


def _sends_by_btl_tcp(environment: Mapping[str, str]) -> bool:
    if environment.get("OMPI_MCA_pml") == "cm":
        return False
    components = environment.get("OMPI_MCA_btl", "")
    words = [word.strip() for word in components.removeprefix("^").split(",")]
    return not components or ("tcp" in words) is not components.startswith("^")


def _is_one_pod(environment: Mapping[str, str]) -> bool:
    """Return whether all ranks are in this pod, so that shared memory or NVLink carry everything."""
    return 1 < read_size(environment) <= read_local_size(environment)


def _check_intel_mpi(found: Transports, environment: Mapping[str, str], host: str) -> None:
    if environment.get("I_MPI_FABRICS") == "shm":
        return
    variable, provider = _ofi_provider(environment)
    if provider in _OFI_VERBS:
        _require_card(found, host, variable, provider)
    if provider == "mlx" and (missing := find_missing(["libucp.so.0"])):
        raise TransportUnusable(
            f"{variable}: got 'mlx', which sends by UCX; {host} cannot load it ({'; '.join(missing.values())})",
            hint="install libucx0 into the image, or set the variable to verbs",
        )
    if provider == "tcp" and not _is_one_pod(environment):
        _require_interface(found, host, environment, "FI_TCP_IFACE")


def _ofi_provider(environment: Mapping[str, str]) -> tuple[str, str]:
    """Return the variable that names libfabric's provider, and the provider without what is layered on it."""
    for variable in ("I_MPI_OFI_PROVIDER", "FI_PROVIDER"):
        if value := environment.get(variable):
            return variable, value.partition(";")[0]
    return "FI_PROVIDER", ""


def _check_ucx(found: Transports, environment: Mapping[str, str], host: str) -> None:
    is_one_pod = _is_one_pod(environment)
    transports = _words(environment.get("UCX_TLS", ""))
    verbs = [word for word in transports if _UCX_VERBS.fullmatch(word)]
    others = [word for word in transports if word not in verbs and (is_one_pod or not _UCX_LOCAL.fullmatch(word))]
    if verbs and not others:
        _require_card(found, host, "UCX_TLS", verbs[0])
    devices = _words(environment.get("UCX_NET_DEVICES", ""))
    if devices and not is_one_pod and not any(_may_be_device(found, name) for name in devices):
        _require_card(found, host, "UCX_NET_DEVICES", devices[0], device=devices[0])


def _may_be_device(found: Transports, name: str) -> bool:
    """Return whether UCX may find a device of this name; patterns and the word for all are left to it."""
    if name == "all" or re.search(r"[*?\[]", name):
        return True
    is_port = name in found.usable_ports or name in (card.name for card in found.usable_cards)
    return name in found.interfaces or not found.interfaces or (is_port and not found.locks_too_little)


def _check_nccl(found: Transports, environment: Mapping[str, str], host: str) -> None:
    sockets = environment.get("NCCL_SOCKET_IFNAME", "")
    if sockets and found.interfaces and not any(_selects(sockets, name) for name in found.interfaces):
        raise _no_interface(found, host, "NCCL_SOCKET_IFNAME", sockets)
    network = environment.get("NCCL_NET", "").upper()
    if network == "IB":
        _require_card(found, host, "NCCL_NET", environment["NCCL_NET"])
    cards = environment.get("NCCL_IB_HCA", "")
    is_off = network not in ("", "IB") or environment.get("NCCL_IB_DISABLE", "0") != "0" or _is_one_pod(environment)
    if cards and not cards.startswith("^") and not is_off:
        _require_card(found, host, "NCCL_IB_HCA", cards)
        if not any(_selects(cards, port) for port in found.usable_ports):
            raise _no_card(found, host, "NCCL_IB_HCA", cards)


def _selects(pattern: str, name: str) -> bool:
    """Return whether one of NCCL's lists selects a name: by prefixes; exactly after =; what is not in it after ^.

    A card's name ends in a port after a colon, which the list may leave out.
    """
    is_excluding, pattern = pattern.startswith("^"), pattern.removeprefix("^")
    is_exact = pattern.startswith("=")

    def is_meant(word: str) -> bool:
        own = name if ":" in word else name.partition(":")[0]
        return own == word if is_exact or ":" in word else own.startswith(word)

    return any(map(is_meant, _words(pattern.removeprefix("=")))) is not is_excluding


def _require_interface(found: Transports, host: str, environment: Mapping[str, str], variable: str) -> None:
    """Check that the pod has an interface of those that a list names; the libraries pass over the others."""
    names = _words(environment.get(variable, ""))
    # Without sysfs nothing is known of them.
    if names and found.interfaces and not any(_has_interface(found, name) for name in names):
        raise _no_interface(found, host, variable, ",".join(names))


def _has_interface(found: Transports, word: str) -> bool:
    if "/" not in word:
        return word in found.interfaces
    try:
        network = ipaddress.ip_network(word, strict=False)
    except ValueError:  # 10.1/16, which Open MPI takes
        return True
    return any(ipaddress.ip_address(one) in network for addresses in found.interfaces.values() for one in addresses)


def _require_card(found: Transports, host: str, variable: str, value: str, *, device: str | None = None) -> None:
    """Check that ranks can send over InfiniBand: by any card, or by this one, or by this port of it."""
    if found.verbs_trouble is not None:
        is_of_image = found.device_trouble is None
        raise TransportUnusable(
            f"{variable}: got {value!r}, which needs InfiniBand; {host} has none: {found.verbs_trouble}",
            hint=f"install ibverbs-providers, libibverbs1 and librdmacm1 into the image, or {_NO_TCP}"
            if is_of_image
            else _GIVE_CARDS,
        )
    wanted = [name for name in found.usable_ports if device in (None, name, name.partition(":")[0])]
    if not wanted:
        raise _no_card(found, host, variable, value)
    if found.locks_too_little:
        assert found.locked_bytes is not None, "without a limit nothing is too little"
        raise TransportUnusable(
            f"{variable}: got {value!r}, which needs InfiniBand; a rank on {host} may lock "
            f"{format_bytes(found.locked_bytes)}, and InfiniBand needs {format_bytes(MIN_LOCKED_BYTES)} or more",
            hint="set LimitMEMLOCK=infinity for the node's container runtime; spec.network.lockMemory by itself "
            "does it for root only",
        )


def _no_card(found: Transports, host: str, variable: str, value: str) -> TransportUnusable:
    others = [
        card.trouble or f"port {port} of {card.name} is not active"
        for card in found.cards
        for port in (sorted(set(card.ports) - set(card.active_ports)) if card.trouble is None else (0,))
    ]
    active = ", ".join(found.usable_ports) or "none"
    reason = f" ({'; '.join(others)})" if others else ""
    return TransportUnusable(
        f"{variable}: got {value!r}; allowed: {active}, the active ports of InfiniBand that {host} may use{reason}",
        hint="correct the variable in the job or its profile, or ask for more cards with spec.resources.rdma.perWorker",
    )


def _no_interface(found: Transports, host: str, variable: str, value: str) -> TransportUnusable:
    names = [name for name, addresses in found.interfaces.items() if addresses]
    return TransportUnusable(
        f"{variable}: got {value!r}; allowed: {', '.join(names)}, the network interfaces of {host}",
        hint="correct the variable in the job or its profile; in most pods the interface is eth0",
    )


def open_mpi_has_ucx() -> bool:
    """Return whether Open MPI lists UCX among its parts; true where it cannot be asked. Takes 50 ms."""
    program = Path(sys.prefix, "bin/ompi_info")
    command = str(program) if program.exists() else shutil.which("ompi_info")
    if command is None:
        return True
    try:
        answer = subprocess.run(
            [command, "--parsable"], stdin=subprocess.DEVNULL, capture_output=True, timeout=_OMPI_INFO_TIMEOUT_S
        )
    except (OSError, subprocess.TimeoutExpired):
        return True
    return answer.returncode != 0 or b"mca:pml:ucx:" in answer.stdout


def _words(text: str) -> list[str]:
    """Return the parts of a list with commas; none of a list that begins with ^, which only leaves out."""
    return [] if text.startswith("^") else [word.strip() for word in text.split(",") if word.strip()]
