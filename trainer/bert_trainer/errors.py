"""The trainer's error tree.

    TrainerError          something stopped the run; exit code 1
    ├── InputError        the user's input is wrong; exit code 2, never retried unchanged
    │   ├── WrongMPI              the image holds another MPI than the job names
    │   ├── WrongWorld            the launcher started other ranks, or on other hosts, than the job asks for
    │   ├── WrongTopology         the machine or the pod has other sockets, NUMA nodes or cores than the job says
    │   ├── TransportUnusable     a network or library that the environment asks for is not in the pod
    │   ├── DeviceUnusable        PyTorch finds no GPU, or fewer than ranks, where the run asks for them
    │   ├── UnsupportedPrecision  the processor or device cannot compute as asked
    │   ├── EngineUnusable        what the run's engine needs is not installed, or in another release
    │   ├── OutOfDeviceMemory     a GPU's memory does not hold what the run needs of it
    │   └── DataUnreadable        a shard is damaged, gone, or another one than when the run began
    ├── TrainingUnhealthy not finite, spikes, or a loss scale below its limit, where the policy is to stop; exit code 1
    ├── FencedError       a newer attempt owns the output folder; exit code 4
    ├── RanksDisagree     ranks have made different things of one step; exit code 4, retried
    ├── StorageFailed     files could not be read or written after the first step, or in a data build; exit code 4
    └── Stopped           ended on request with everything saved; exit code 3, the next attempt resumes

A message is one sentence that names the file or field, what was found and what is allowed; an optional
second line begins with ``hint:`` and says what to do next. Anything else that is raised is a bug and keeps
its traceback. The class name is the reason that the operator reads; those in ``NAMED`` are also printed.
"""

from __future__ import annotations

EXIT_FAILED = 1
EXIT_BAD_INPUT = 2
EXIT_STOPPED = 3
"""Stopped on request with everything saved: the next attempt resumes from there."""
EXIT_INFRASTRUCTURE = 4
"""The infrastructure failed, not the program: worth retrying unchanged."""

PEER_ENDED = "Another rank has ended; its own message says why"
"""What a rank logs that failed only because another one ended: launchers never take it for the first failure."""


class TrainerError(Exception):
    """The run cannot continue, for a reason other than the user's input."""

    exit_code = EXIT_FAILED

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        """Take a one-sentence message, and a hint at what to do next, which is shown on a line of its own."""
        self.message, self.hint = message, hint
        self.is_reported = False
        """Whether the user has seen it; set by ``output.termination``."""
        super().__init__(f"{message}\nhint: {hint}" if hint else message)


class InputError(TrainerError):
    """A file, a folder or a setting is wrong; retrying unchanged cannot help."""

    exit_code = EXIT_BAD_INPUT


class WrongMPI(InputError):
    """The image does not contain the MPI that the job names."""


class WrongWorld(InputError):
    """Ranks were started in another number, or on another number of hosts, than the job asks for."""


class WrongTopology(InputError):
    """The machine has other sockets, NUMA nodes or hardware threads than the job says, or the pod other cores."""


class TransportUnusable(InputError):
    """The environment asks MPI, UCX or NCCL for a network, a card or a library that the pod does not have."""


class DeviceUnusable(InputError):
    """The run asks for GPUs, and PyTorch finds none (no driver, no device, made without CUDA) or fewer than ranks."""


class UnsupportedPrecision(InputError):
    """This processor or device has no instructions for the precision."""


class EngineUnusable(InputError):
    """The engine that the run asks for is not installed, is of another release, or cannot run the model."""


class OutOfDeviceMemory(InputError):
    """A GPU has less memory than model, optimizer state and one pass need; the same run would fail again."""


class TrainingUnhealthy(TrainerError):
    """Training is unstable, and the policy is to stop, or its other actions are exhausted."""


class DataUnreadable(InputError):
    """A shard is damaged, gone, or another one than when the run began, while others of its folder are there."""


class FencedError(TrainerError):
    """A newer attempt owns the output folder; this one must stop writing to it.

    Nothing is wrong with the program or its input: a node that was cut off has come back.
    """

    exit_code = EXIT_INFRASTRUCTURE


class RanksDisagree(TrainerError):
    """Ranks computed different results for the same step: the memory or device of one of them is faulty."""

    exit_code = EXIT_INFRASTRUCTURE


class StorageFailed(TrainerError):
    """Files could not be read or written: a full disk, a volume that is read-only or does not answer.

    After the first step nothing that the user wrote can be the cause, nor in a data build that has begun to write.
    Before the first step of training the exit code is that of the error that this one replaces.
    """

    exit_code = EXIT_INFRASTRUCTURE

    def __init__(self, message: str, *, hint: str | None = None, exit_code: int = EXIT_INFRASTRUCTURE) -> None:
        """exit_code: 4 after the first step."""
        super().__init__(message, hint=hint)
        self.exit_code = exit_code


NAMED: dict[str, type[TrainerError]] = {
    kind.__name__: kind
    for kind in (
        WrongMPI,
        WrongWorld,
        WrongTopology,
        TransportUnusable,
        DeviceUnusable,
        UnsupportedPrecision,
        EngineUnusable,
        OutOfDeviceMemory,
        TrainingUnhealthy,
        RanksDisagree,
        DataUnreadable,
        FencedError,
        StorageFailed,
    )
}
"""Errors whose name is printed, since it says more than the exit code."""


class Stopped(TrainerError):
    """Ended on request; everything is saved and the next attempt resumes from there."""

    exit_code = EXIT_STOPPED

    def __init__(
        self, message: str, *, stage: str | None = None, step: int | None = None, checkpoint: str | None = None
    ) -> None:
        """stage, step, checkpoint: where the next attempt resumes."""
        super().__init__(message)
        self.stage, self.step, self.checkpoint = stage, step, checkpoint
