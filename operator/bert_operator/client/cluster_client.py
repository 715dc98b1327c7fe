"""``Client``: the jobs of a cluster, through kubectl."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from bert_operator.errors import DocumentError
from bert_operator.names import KIND
from bert_operator.plugin import changing, reading, related_objects, waiting
from bert_operator.plugin.event import Event, read_event
from bert_operator.plugin.following import Follower, LogSelection
from bert_operator.plugin.job import Job
from bert_operator.plugin.kubectl import Kubectl
from bert_operator.plugin.views.cost_view import Cost, find_cost


class Client:
    """The BertPretrainJobs of one namespace."""

    def __init__(
        self, namespace: str | None = None, *, context: str | None = None, kubeconfig: str | Path | None = None
    ) -> None:
        """Prepare it; nothing is asked yet.

        Args:
            namespace: Of the jobs; None: that of the context.
            context: Of the kubeconfig; None: the current one.
            kubeconfig: The file; None: as kubectl finds it.
        """
        words = (("--context", context), ("--kubeconfig", kubeconfig))
        options = tuple(word for name, value in words if value is not None for word in (name, str(value)))
        self._kubectl = Kubectl(options=options, namespace=namespace)

    def jobs(self, *, selector: str | None = None, everywhere: bool = False) -> list[Job]:
        """Return jobs.

        Args:
            selector: Labels that they have, as in ``kubectl get --selector``; None: any.
            everywhere: Whether those of all namespaces.

        Raises:
            ApiRefused: They cannot be read.
        """
        return reading.read_jobs(self._kubectl, selector=selector, everywhere=everywhere)

    def get(self, name: str) -> Job:
        """Return a job as it is now: ``job.phase``, ``job.progress``, ``job.stages()``, ``job.status``.

        Raises:
            NoSuchObject: There is no such job.
            ApiRefused: It cannot be read.
        """
        return reading.read_job(self._kubectl, name)

    def submit(self, manifest: str | Path | Mapping[str, Any]) -> Job:
        """Create a job, or change it, as kubectl apply does.

        Args:
            manifest: A file with one job, or the job as a document.

        Raises:
            ApiRefused: The API server refuses it; the message has every problem.
            DocumentError: The file holds no job, or several.
        """
        if isinstance(manifest, Mapping):
            text, file = json.dumps(manifest), "-"
        else:
            text, file = None, str(manifest)
        found = self._kubectl.read("apply", "-f", file, given=text)
        items = found.get("items", [found])
        jobs = [Job(item) for item in items if item.get("kind") == KIND]
        if len(jobs) != 1:
            raise DocumentError(f"{file}: got {len(jobs)} BertPretrainJobs; allowed: one; all of them are applied")
        return jobs[0]

    def suspend(self, name: str) -> Job:
        """Stop a job with a checkpoint; ``wait(name, "stopped")`` waits for it.

        Raises:
            InputError: It has ended.
            NoSuchObject: There is no such job.
            ApiRefused: It may not be changed.
        """
        return changing.set_suspend(self._kubectl, name, suspend=True)[0]

    def resume(self, name: str) -> Job:
        """Let a suspended job go on from its newest checkpoint. Raises as ``suspend``."""
        return changing.set_suspend(self._kubectl, name, suspend=False)[0]

    def retry(self, name: str, *, say: Callable[[str], None] = print) -> Job:
        """Start a failed job again, as a new object that resumes.

        Args:
            name: Of the job.
            say: Told in which file the manifest lies while there is no job of this name.

        Raises:
            InputError: It has not failed.
            NoSuchObject: There is no such job.
            ApiRefused: The API server refuses it.
        """
        return changing.retry(self._kubectl, name, say=say)

    def delete(self, name: str, *, wait: bool = True) -> None:
        """Delete a job with its pods; files stay on their volumes. wait: until the pods are gone.

        Raises:
            NoSuchObject: There is no such job.
            ApiRefused: It may not be deleted.
        """
        changing.delete(self._kubectl, name, wait=wait)

    def wait(
        self,
        name: str,
        awaited: str = "ended",
        *,
        timeout_s: float | None = None,
        tell: Callable[[Job], None] = lambda job: None,
    ) -> Job | None:
        """Return a job once something holds of it; None after ``deleted``.

        Args:
            name: Of the job.
            awaited: As ``kubectl bert wait --for`` takes it: ``ended``, ``deleted``, ``checkpoint``, ``attempt=2``,
                ``step=100``, ``stage=phase2``, ``condition=Blocked``, or a phase as ``running`` or ``stopped``.
            timeout_s: Longest wait in seconds; None: none.
            tell: Given the job after each change.

        Raises:
            InputError: ``awaited`` is none of those.
            Unreachable: The job has ended otherwise, or was deleted.
            WaitTimeout: It took too long.
            NoSuchObject: There is no such job.
            ApiRefused: It cannot be read.
        """
        return waiting.wait_for(self._kubectl, name, waiting.parse_awaited(awaited), timeout_s=timeout_s, tell=tell)

    def follow(self, name: str, *, rank: int | None = None, attempt: int | None = None) -> Iterator[str]:
        """Yield the lines of a job's log until it ends, each once, through attempts and lost connections.

        Args:
            name: Of the job.
            rank: Lines of one rank alone; None: all.
            attempt: Lines of one attempt alone; None: the newest one and all after it.

        Raises:
            NoSuchObject: There is no such job, or no pod is left of that attempt.
            ApiRefused: The log cannot be read.
        """
        wanted = LogSelection(rank=rank, attempt=attempt, follow=True)
        return Follower(self._kubectl, wanted).lines(name)

    def cost(self, name: str) -> Cost:
        """Return what a job has taken over all attempts, and what it will have taken at the end of its present stage.

        ``hours`` and ``expected`` are by resource, hours of one node, CPU, GiB of memory or device; ``unknown`` says
        what they leave out.

        Raises:
            NoSuchObject: There is no such job.
            ApiRefused: It cannot be read.
        """
        job = reading.read_job(self._kubectl, name)
        frozen = reading.read_frozen_spec(self._kubectl, job)
        return find_cost(job, job.spec if frozen is None else frozen, time.time(), is_frozen=frozen is not None)

    def logs(
        self, name: str, *, rank: int | None = None, attempt: int | None = None, tail: int | None = None
    ) -> list[str]:
        """Return the lines of a job's log that are there now, without waiting for more.

        Args:
            name: Of the job.
            rank: Lines of one rank alone; None: all.
            attempt: Of which attempt; None: the newest one.
            tail: At most so many lines, the last ones; None: all.

        Raises:
            NoSuchObject: There is no such job, or no pod is left of that attempt.
            ApiRefused: The log cannot be read.
        """
        return list(Follower(self._kubectl, LogSelection(rank=rank, attempt=attempt, tail=tail)).lines(name))

    def events(self, name: str) -> list[Event]:
        """Return what has happened to a job, its children and its pods, the newest last, also of pods that are gone.

        The API server forgets Events after an hour, unless it is told otherwise.

        Raises:
            NoSuchObject: There is no such job.
            ApiRefused: The job or Events may not be read.
        """
        found = related_objects.read_events(self._kubectl, reading.read_job(self._kubectl, name))
        return [read_event(document) for document in found]

    def metrics(self, name: str) -> list[dict[str, str | float]]:
        """Return the reports in the logs that are still there, one row each, in their order.

        ``attempt`` and ``stage`` name what a row is about, ``step`` counts optimizer steps of the stage; the other
        columns are the trainer's, with units in their names (``sequences_per_s``, ``elapsed_s``); loss is in nats.
        Reports of attempts whose pods are gone are in ``metrics.jsonl`` on the volume.

        Raises:
            NoSuchObject: There is no such job.
            ApiRefused: The job or a log cannot be read.
        """
        return reading.read_metrics(self._kubectl, reading.read_job(self._kubectl, name))
