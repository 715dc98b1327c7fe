"""Random walks over the spec: bursts of transitions on a few jobs of a real API server, and a look after each.

A walk consists of episodes, each of which begins and ends with an empty namespace and follows from its seed. What it
did is kept as bursts of steps, so that an episode with a finding can be walked again and shortened: a step draws all
that is left open from its own number. The clusters' controllers are real, so the same steps may meet another order.
"""

from __future__ import annotations

import json
import random
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, NamedTuple, Self

from cluster_api import Api, wait_until
from control_plane import namespace_of
from job_documents import all_fields, fields_of
from kubelet import FINAL_PHASES, GROUP, FakeKubelet
from operator_process import ACCOUNT, JOBS, OperatorProcess
from spec_consistency import Memory, Snapshot, find_problems, not_ended, remember
from spec_surroundings import PLAIN, QUOTA
from spec_transitions import TRANSITIONS
from spec_world import HOLD, RESOURCES, Transition

Json = dict[str, Any]

NAMES = ("walk-a", "walk-b", "walk-c", "walk-d")
RIGHTS = "rbac.authorization.k8s.io/v1/clusterrolebindings"
BURSTS = (1, 4, 8, 12, 16)
"""How many transitions follow each other before the operator is given time."""
SOONER = 4
"""So many times as often a transition is drawn that the episode has not had: short walks have rare ones as well."""
PATIENCE_S = 30.0
"""Longest time to catch up: the operator waits 10 s for an exit code, and starts in some seconds beside other work."""
CALM_S = 0.3
MAX_SERIES = 100
"""Lines of /metrics: none is about a job. 64 were seen."""
MAX_BYTES = 120e6
"""Of the operator where no job is left. Its own modules take 80 MB."""
MAX_FINDINGS = 10
BLOCKED_S = 75.0
"""Longest pause after a creation that was refused, and some more."""


class Step(NamedTuple):
    """One transition."""

    name: str
    """Of the job."""
    transition: str
    number: int
    """Decides everything that it leaves open."""


Burst = list[Step]


@dataclass(frozen=True, slots=True)
class Finding:
    """What did not hold, and the way to it."""

    seed: int
    problems: list[str]
    bursts: list[Burst]
    state: str
    """What there was of the jobs that it is about, as JSON, an object a line."""
    tail: str
    """Of the operator's log."""

    def __str__(self) -> str:
        steps = (f"  {' | '.join(' '.join(map(str, step)) for step in burst)}" for burst in self.bursts)
        parts = [f"seed {self.seed}:", *self.problems, "bursts:", *steps, "objects:", self.state]
        return "\n".join([*parts, "the operator's log:", self.tail])


@dataclass(slots=True)
class Count:
    """What was walked."""

    transitions: Counter[str] = field(default_factory=Counter)
    restarts: int = 0
    episodes: int = 0
    fields: set[str] = field(default_factory=set)
    slowest_s: float = 0.0
    """Longest time in which the operator caught up."""
    most_series: int = 0
    """Lines of /metrics."""
    resident_bytes: list[int] = field(default_factory=list)
    """Of the operator, when the namespace was empty."""

    @property
    def missing(self) -> list[str]:
        """Names of the transitions that were not walked."""
        return [kind.__name__ for kind in TRANSITIONS if not self.transitions[kind.__name__]]

    def __str__(self) -> str:
        total = sum(self.transitions.values())
        known, kinds = all_fields(), len(TRANSITIONS)
        return (
            f"transitions={total} kinds={kinds - len(self.missing)}/{kinds} restarts={self.restarts} "
            f"episodes={self.episodes} fields={len(self.fields & known)}/{len(known)} "
            f"slowest_s={self.slowest_s:.1f} most_series={self.most_series} "
            f"peak_mb={max(self.resident_bytes, default=0) / 1e6:.0f}"
        )


class Node(FakeKubelet):
    """A node that says how a pod has ended before it says that nothing is left of it, as kubelets do since 1.27.

    A Job's controller, which is to replace pods once they have failed, waits for that. Of pods that no node has it is
    PodGC which says so.
    """

    def remove(self, pod: Json) -> None:
        if pod["status"].get("phase") not in FINAL_PHASES:
            with suppress(AssertionError):  # it is gone, or has changed since it was read
                self.fail(pod, 143)
        super().remove(pod)


class SpecWalk:
    """A walk in one namespace; ``operator`` looks after that namespace alone, and now and then ``rival`` as well."""

    def __init__(
        self,
        api: Api,
        namespace: str,
        operator: OperatorProcess,
        rival: OperatorProcess,
        bursts: tuple[int, ...] = BURSTS,
    ) -> None:
        self.api, self.namespace, self.operator, self.rival = api, namespace, operator, rival
        self._bursts = bursts
        self._rights: Json = {}
        """The operator's, while they are taken away."""
        self._rival_looks = 0
        """How many more looks the rival lives for."""
        self.kubelet = Node(api, namespace)
        self.memory, self.frozen = Memory(), dict[str, Json]()
        self.count = Count()
        self._logs_read: Counter[str] = Counter()
        """Of each operator's log, by its name, so many signs."""

    def __enter__(self) -> Self:
        """Begin."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Leave the cluster and the machine as they were."""
        self.give_back_rights()
        self.rival.kill()

    # What transitions act on.

    def look(self) -> Snapshot:
        """Return the namespace as it is."""
        children = [
            {**item, "kind": kind}
            for kind in ("Job", "MPIJob")
            for item in self.api.list(RESOURCES[kind], self.namespace)
        ]
        maps = self.api.list(RESOURCES["ConfigMap"], self.namespace, labelSelector=f"{GROUP}/job")
        policies = self.api.list(RESOURCES["NetworkPolicy"], self.namespace)
        return Snapshot(
            tuple(self.api.list(JOBS, self.namespace)),
            tuple(children),
            tuple({**item, "kind": "ConfigMap"} for item in maps),
            tuple({**item, "kind": "NetworkPolicy"} for item in policies),
            tuple(self.api.list("v1/pods", self.namespace)),
        )

    def note_fields(self, document: Json) -> None:
        """Note that the API server took these fields."""
        self.count.fields |= fields_of(document)

    def end_operator(self, how: str, settings: Json) -> None:
        """Kill the operator, or ask it to end, and start it with other settings, without waiting for it."""
        self.rival.kill()  # two with different settings would be at odds for ever
        self._rival_looks = 0
        getattr(self.operator, how)()
        for operator in (self.operator, self.rival):
            operator.configure(**settings)
        self.operator.launch()
        self.count.restarts += 1

    def start_rival(self) -> None:
        """Start a second operator beside it; when the next burst has been looked at, it is killed."""
        self.rival.launch()
        self._rival_looks = 2

    def take_rights(self) -> None:
        """Take the operator's rights away until the end of the burst."""
        if not self._rights:
            self._rights = self.api.get(RIGHTS, ACCOUNT).expect()
            self.api.delete(RIGHTS, ACCOUNT).expect()

    def give_back_rights(self) -> None:
        """Give the operator its rights back."""
        if rights := self._rights:
            self._rights = {}
            kept = {key: rights["metadata"][key] for key in ("name", "labels")}
            version = RIGHTS.rpartition("/")[0]
            self.api.create({**rights, "apiVersion": version, "kind": "ClusterRoleBinding", "metadata": kept}).expect()

    # Walking.

    def episode(self, seed: int, transitions: int) -> Finding | None:
        """Walk so many transitions in an empty namespace, and leave it empty."""
        chance = random.Random(seed)
        bursts: list[Burst] = []
        return self._observed(seed, bursts, self._drawn(chance, transitions, bursts))

    def replay(self, seed: int, bursts: Sequence[Burst]) -> Finding | None:
        """Walk what was drawn before."""
        kinds = {transition.__name__: transition for transition in TRANSITIONS}

        def again() -> Iterator[None]:
            for burst in bursts:
                for step in burst:
                    kinds[step.transition](self, step.name, random.Random(step.number))
                yield

        return self._observed(seed, [*bursts], again())

    def shorten(self, finding: Finding, *, tries: int) -> Finding:
        """Leave out of an episode what a finding does not need, as far as so many tries tell."""
        names = [name for name in NAMES if any(text.startswith(name) for text in finding.problems)]
        if names:
            about = [[step for step in burst if step.name in names or "operator" in step.transition]
                     for burst in finding.bursts]  # fmt: skip
            tries -= 1
            finding = self.replay(finding.seed, [burst for burst in about if burst]) or finding
        parts = 2
        while tries > 0 and len(finding.bursts) > 1:
            size = max(1, len(finding.bursts) // parts)
            for start in range(0, len(finding.bursts), size):
                tries -= 1
                shorter = self.replay(finding.seed, finding.bursts[:start] + finding.bursts[start + size :])
                if shorter is not None:
                    finding = shorter
                    break
                if tries <= 0:
                    break
            else:
                if size == 1:
                    break
                parts *= 2
        return finding

    def _drawn(self, chance: random.Random, transitions: int, bursts: list[Burst]) -> Iterator[None]:
        left, weights = transitions, {kind: weight * SOONER for kind, weight in TRANSITIONS.items()}
        while left > 0:
            bursts.append([])
            size = min(left, chance.choice(self._bursts))
            while len(bursts[-1]) < size:
                transition = chance.choices([*weights], [*weights.values()])[0]
                step = Step(chance.choice(NAMES), transition.__name__, chance.getrandbits(32))
                if self._take(transition, step):
                    bursts[-1].append(step)
                    weights[transition] = TRANSITIONS[transition]
            left -= size
            yield

    def _take(self, transition: Transition, step: Step) -> bool:
        is_done = transition(self, step.name, random.Random(step.number))
        if is_done:
            self.count.transitions[step.transition] += 1
        return is_done

    def _observed(self, seed: int, bursts: list[Burst], walked: Iterator[None]) -> Finding | None:
        """Let the operator catch up after every burst, and in the end take every hindrance away."""
        self.memory, self.frozen = Memory(), {}
        problems: list[str] = []
        for _ in walked:
            if problems := self._settle():
                break
        problems = problems or self._finish()
        finding = self._note(seed, problems, bursts)
        problems = self._empty(with_namespace=seed % 2 == 0)
        finding = finding or self._note(seed, problems, bursts)
        self.count.episodes += 1
        return finding

    def _note(self, seed: int, problems: list[str], bursts: list[Burst]) -> Finding | None:
        if not problems:
            return None
        found = self.look()
        lines = []
        for item in (*found.jobs, *found.children, *found.config_maps, *found.policies, *found.pods):
            name = item["metadata"]["name"]
            if any(text.startswith(job) and name.startswith(job) for job in NAMES for text in problems):
                kept = {key: value for key, value in item["metadata"].items() if key != "managedFields"}
                spec = {key: value for key, value in item.get("spec", {}).items() if not isinstance(value, dict | list)}
                said = {"kind": item.get("kind"), "metadata": kept, "spec": spec, "status": item.get("status")}
                lines.append(json.dumps(said))
        return Finding(seed, problems, bursts, "\n".join(lines), self.operator.tail())

    # Looking.

    def _settle(self, patience_s: float = PATIENCE_S) -> list[str]:
        """Return what still does not hold once the operator has had its time; nothing else may change by then."""
        self.give_back_rights()
        self._rival_looks -= 1
        if self._rival_looks == 0:
            self.rival.kill()
        began_s = time.monotonic()
        problems: list[str] = ["(not looked at)"]
        written: list[str] = []

        def is_calm() -> bool:
            problems[:] = self._problems()
            if problems:
                return False
            before = self.look()
            time.sleep(CALM_S)
            after = self.look()
            written[:] = after.written_since(before) or written
            problems[:] = find_problems(after, self.memory)
            remember(after, self.memory)
            self._remember_frozen(after)
            # Two operators at once, which nobody may run, may keep each other writing: then what holds is enough.
            return not problems and (self._rival_looks > 0 or before.versions() == after.versions())

        try:
            wait_until(is_calm, "calm", timeout_s=patience_s, every_s=0.1)
        except TimeoutError:
            return problems or ["it does not come to rest: objects are written again and again", *written]
        self.count.slowest_s = max(self.count.slowest_s, time.monotonic() - began_s)
        return self._surprises()

    def _problems(self) -> list[str]:
        if not self.operator.pid:
            return ["the operator has ended by itself"]
        if self.operator.page("/readyz")[0] != 200:
            return ["the operator is not ready"]
        if self._rival_looks > 0 and not self.rival.pid:
            return ["the second operator has ended by itself"]
        return find_problems(self.look(), self.memory)

    def _surprises(self) -> list[str]:
        """Return what the operator did not expect, of its log since the last look, and counters without a bound."""
        new = ""
        for operator in (self.operator, self.rival):
            log = operator.log()
            new += log[self._logs_read[operator.name] :]
            self._logs_read[operator.name] = len(log)
        # Those of single jobs come and go with these; tests/observation/test_job_series.py has their bound.
        not_counted = ("#", "bert_operator_job_")
        series = [line for line in self.operator.page("/metrics")[1].splitlines() if not line.startswith(not_counted)]
        self.count.most_series = max(self.count.most_series, len(series))
        found = ["the operator's log has a traceback"] if "Traceback" in new else []
        return found + [f"/metrics has {len(series)} series"] * (len(series) > MAX_SERIES)

    def _remember_frozen(self, found: Snapshot) -> None:
        jobs = {job["metadata"]["uid"] for job in found.jobs}
        for item in found.config_maps:
            for owner in item["metadata"].get("ownerReferences") or ():
                if owner["uid"] in jobs:
                    self.frozen.setdefault(owner["uid"], item)

    # The end of an episode.

    def _finish(self) -> list[str]:
        """Take every hindrance away, and let every pod succeed: all jobs must come to an end, or say what they need."""
        nobody = random.Random(0)
        self._rival_looks = 0
        self.rival.kill()
        self.api.delete("v1/resourcequotas", QUOTA, self.namespace)
        kinds = {transition.__name__: transition for transition in TRANSITIONS}
        for name in NAMES:
            for kind in ("uproot", "let_go", "clear_border", "restore_frozen", "go_on"):
                kinds[kind](self, name, nobody)
        with self.kubelet:
            stuck: list[str] = []

            def has_ended() -> bool:
                self._release_children()
                stuck[:] = [text for job in self.look().jobs if (text := not_ended(job))]
                return not stuck

            try:
                wait_until(has_ended, "all jobs to end", timeout_s=BLOCKED_S, every_s=0.3)
            except TimeoutError:
                return stuck
        return self._settle()

    def _release_children(self) -> None:
        for child in self.look().children:
            spec = child["spec"] if child["kind"] == "Job" else child["spec"]["runPolicy"]
            if spec.get("suspend"):
                go: Json = {"suspend": False}
                change = {"spec": go if child["kind"] == "Job" else {"runPolicy": go}}
                self.api.patch(RESOURCES[child["kind"]], child["metadata"]["name"], change, self.namespace)

    def _renew_namespace(self) -> list[str]:
        """Wait until the namespace is gone, and make it again."""

        def is_gone() -> bool:
            self.kubelet.remove_deleted()
            return self.api.get("v1/namespaces", self.namespace).status == 404

        problems = _waited(is_gone, [], 2 * PATIENCE_S)
        if not problems:
            prepare_namespace(self.api, self.namespace)
        return problems

    def _empty(self, *, with_namespace: bool) -> list[str]:
        """Delete all jobs; what nobody wanted to keep must go with them, and the operator must forget all."""
        for resource in (JOBS, *RESOURCES.values(), "v1/pods"):
            for item in self.api.list(resource, self.namespace):
                if HOLD in (item["metadata"].get("finalizers") or ()):
                    kept = [text for text in item["metadata"]["finalizers"] if text != HOLD]
                    change = {"metadata": {"finalizers": kept}}
                    self.api.patch(resource, item["metadata"]["name"], change, self.namespace)
        if with_namespace:
            self.api.delete("v1/namespaces", self.namespace).expect()
        for job in self.look().jobs if not with_namespace else ():
            self.api.delete(JOBS, job["metadata"]["name"], self.namespace)
        left: list[str] = []

        def is_gone() -> bool:
            self.kubelet.remove_deleted()
            found = self.look()
            left[:] = [f"{job['metadata']['name']}: does not go" for job in found.jobs]
            left[:] += find_problems(found, self.memory)
            return not left

        problems = _waited(is_gone, left)
        # What may stay was kept on request; the next episode begins without it.
        for resource in (*RESOURCES.values(), "v1/pods"):
            for item in self.api.list(resource, self.namespace):
                if item["metadata"]["name"] != "kube-root-ca.crt":
                    self.api.delete(resource, item["metadata"]["name"], self.namespace, grace_s=0)
        if with_namespace:
            problems += self._renew_namespace()
        remembered: list[str] = []

        def is_forgotten() -> bool:
            self.kubelet.remove_deleted()
            kinds = ("jobs", "children", "pods")
            known = {kind: self.operator.figure(f'known_objects{{kind="{kind}"}}') for kind in kinds}
            remembered[:] = [
                f"the operator still knows {number:.0f} {kind}" for kind, number in known.items() if number
            ]
            return not self.api.list("v1/pods", self.namespace) and not remembered

        problems += _waited(is_forgotten, remembered)
        self.count.resident_bytes.append(held := self.operator.resident_bytes)
        return problems + [f"the operator holds {held / 1e6:.0f} MB, and knows nothing"] * (held > MAX_BYTES)


def _waited(holds: Callable[[], bool], otherwise: list[str], patience_s: float = PATIENCE_S) -> list[str]:
    try:
        wait_until(holds, "the end", timeout_s=patience_s, every_s=0.2)
    except TimeoutError:
        return [*otherwise] or ["pods, or their namespace, do not go"]
    return []


def prepare_namespace(api: Api, name: str) -> None:
    """Make a namespace in which pods can be created."""
    api.create(namespace_of(name)).expect()
    wait_until(lambda: api.get("v1/serviceaccounts", "default", name).status == 200, f"ServiceAccount in {name}")


def settings() -> Json:
    """Return the settings that the operator of a walk begins with."""
    return PLAIN
