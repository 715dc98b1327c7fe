"""What a fault is: how it is done to a running job, how it is taken back, and what must be true afterwards."""

from __future__ import annotations

import contextlib
import random
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

from job_cluster import JobCluster, Json, Namespace
from real_jobs import RealJob

Group = Literal["training", "control plane", "objects"]
GROUPS: tuple[Group, ...] = ("training", "control plane", "objects")
HEALED_S = 30.0
"""Seconds beyond the start of the processes, after which a job has to take steps again."""


class NotInEffect(Exception):
    """The fault could not be brought about, or changed nothing; the text says why."""


@dataclass(frozen=True, slots=True)
class Scene:
    """A running job to which something happens."""

    cluster: JobCluster
    namespace: Namespace
    job: RealJob
    random: random.Random
    """Seeded by fault and moment."""
    undisturbed: RealJob
    """The run of the same spec that nothing happened to; its files are still on the volume of its namespace."""
    notes: list[str] = field(default_factory=list)
    """For the table: what the numbers do not say."""
    kept: dict[str, Any] = field(default_factory=dict)
    """What ``inject`` leaves for ``heal``."""
    after: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)
    """Closed after the verdict, whatever happened."""

    @property
    def folder(self) -> Path:
        """The job's output folder on this machine."""
        assert self.namespace.folder is not None, "faults need the node of this machine; unset KUBECONFIG"
        return self.namespace.folder / self.job.name

    @property
    def volume(self) -> Path:
        """The volume's folder on this machine."""
        return self.folder.parent


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One fault, and the bars that a job has to pass under it."""

    name: str
    group: Group
    prepare: Callable[[Scene], None] | None = None
    """Done before the job is created."""
    inject: Callable[[Scene], None]
    """Returns once the fault is there. Raises NotInEffect."""
    heal: Callable[[Scene], None] | None = None
    """Takes it back; None: it is over at once, or for good."""
    hold_s: float = 0.0
    """Seconds between the two."""
    spec: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))
    """What the job's spec has besides that of ``real_jobs.training_job``."""
    ends: Literal["Succeeded", "Failed"] = "Succeeded"
    reason: str = ""
    """Of a job that ends Failed: the reason that its last failure must have."""
    same_weights: bool = True
    """Equal to the undisturbed run's, bit by bit."""
    step_again_s: float = HEALED_S
    """Seconds beyond the start of the processes until a step again, from the fault, or from its end."""
    lost_intervals: int = 1
    """Checkpoint intervals that a fault may cost; 2 where it takes the newest checkpoint as well."""
    steps_interrupted: bool = True
    """False: no step may be interrupted or trained again, and ``settled`` has to pass its bar."""
    settled: Callable[[Scene], float] | None = None
    """Returns the seconds until the status says what is; None: nobody looks."""
    settled_s: float = 15.0
    in_effect: Callable[[Scene], str] | None = None
    """Asked after the end: why the fault cannot have had an effect, empty where it had one."""
    alone: bool = False
    """It ends the job, or touches more than the job: a job for every moment, and no other job beside it. Otherwise one
    job gets the fault at all moments, one after another."""
    one_job: bool = False
    """It touches more than the job, but ends none: one job gets it at all moments, with no other job beside it."""
    a_job_per_moment: bool = False
    """It ends the job, but touches no other."""
    own_namespace: bool = False
    """The job of a moment runs in a namespace made for it, with a copy of the dataset."""
    faulty_volume: bool = False
    """The job runs on a volume that can be made to fail (``faulty_volume.py``)."""

    @property
    def slug(self) -> str:
        """The name as a part of names of Kubernetes."""
        return re.sub(r"[^a-z0-9]+", "-", self.name.lower()).strip("-")

    @property
    def is_serial(self) -> bool:
        """Whether no other job may run beside it."""
        return self.alone or self.one_job

    @property
    def is_per_moment(self) -> bool:
        """Whether every moment has a job of its own."""
        return self.alone or self.a_job_per_moment or self.own_namespace or self.ends == "Failed"


def newest_ranks(scene: Scene) -> list[Json]:
    """Return the pods with ranks of the newest attempt. Raises NotInEffect where there are none."""
    if ranks := scene.job.pods("worker")[-2:] or scene.job.pods("single")[-1:]:
        return ranks
    raise NotInEffect("the job had no pods with ranks at this moment")
