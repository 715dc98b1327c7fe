"""Whatever happens to children, the plan never doubles them, never wakes an ended job, and comes to an end.

No cluster is needed for that, not even one in memory: a plan is a pure function of what was observed. Here it is
carried out on those observations themselves, and chance ends children; thousands of lives take seconds.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from hypothesis import given, settings
from hypothesis import strategies as st

from bert_operator.api.schema.status import TERMINAL_PHASES, JobStatus
from bert_operator.state.observed import Child, Observed
from bert_operator.state.plan import Plan, plan
from sample_job import sample_job

JOB = sample_job(lambda spec: spec.update(runPolicy={"applicationRetries": 2, "infrastructureRetries": 3}))
# Two runs, each with one success, 2 retries of one kind and 3 of the other.
MAX_ATTEMPTS = 2 * (1 + 2 + 3)

ENDS: dict[str, dict[str, object]] = {
    "done": {"state": "Succeeded", "exit_code": 0},
    "failed": {"state": "Failed", "exit_code": 1},
    "bad input": {"state": "Failed", "exit_code": 2},
    "killed": {"state": "Failed", "signal": 9, "exit_code": 137},
    "drained": {"state": "Stopped", "exit_code": 3},
}


@dataclass
class Observations:
    """What a plan is made of, and the only things that can be done to it."""

    now_s: float = 1_700_000_000.0
    status: JobStatus = field(default_factory=JobStatus)
    children: dict[int, Child] = field(default_factory=dict)
    stop_requested: bool = False

    def plan(self) -> Plan:
        children = tuple(self.children.values())
        seen = Observed(status=self.status, children=children, stop_requested=self.stop_requested)
        return plan(JOB, seen, self.now_s)

    def carry_out(self, step: Plan) -> None:
        self.status = step.status
        for child in step.stop:
            assert not self.children[child.attempt].stopping, "told to stop twice"
            self.children[child.attempt] = replace(child, stopping=True)
        if step.create is not None:
            assert not any(child.is_active for child in self.children.values()), "two children at once"
            assert step.create.attempt > max(self.children, default=0), "a number used twice"
            assert self.status.attempt == step.create.attempt, "created before it was written down"
            self.children[step.create.attempt] = Child(
                run=step.create.run, attempt=step.create.attempt, state="Pending"
            )

    def end_newest(self, end: str) -> None:
        if self.children and self.children[max(self.children)].is_active:
            newest = self.children[max(self.children)]
            self.children[newest.attempt] = replace(
                newest,
                finished_at_s=self.now_s,
                **ENDS[end],  # type: ignore[arg-type]
            )

    def settle(self) -> None:
        """Plan and carry out until nothing is left to do; a second look finds nothing new."""
        self.carry_out(self.plan())
        again = self.plan()
        assert (again.create, again.stop) == (None, ())
        self.carry_out(again)
        assert self.plan().status == self.status, "the status does not come to rest"


EVENTS = st.one_of(
    st.sampled_from([("end", end) for end in ENDS]),
    st.sampled_from([("run", ""), ("stop", ""), ("go on", ""), ("forget status", ""), ("forget children", "")]),
    st.tuples(st.just("wait"), st.sampled_from(["5", "400"])),
)


def happen(seen: Observations, event: str, detail: str) -> None:
    match event:
        case "end":
            seen.end_newest(detail)
        case "run" if seen.children and seen.children[max(seen.children)].state == "Pending":
            newest = max(seen.children)
            seen.children[newest] = replace(seen.children[newest], state="Running")
        case "stop":
            seen.stop_requested = True
        case "go on":
            seen.stop_requested = False
        case "wait":
            seen.now_s += float(detail)
        case "forget status" if seen.status.phase not in TERMINAL_PHASES:
            seen.status = JobStatus()
        case "forget children" if not any(child.is_active for child in seen.children.values()):
            seen.children.clear()


@settings(max_examples=300)
@given(st.lists(EVENTS, max_size=60))
def test_random_walks_never_double_children_nor_wake_an_ended_job(events: list[tuple[str, str]]) -> None:
    seen = Observations()
    seen.settle()
    for event, detail in events:
        before = seen.status
        # Of the two memories only one may be lost, or nothing is known of the job at all.
        if event == "forget children" and ("forget status", "") in events:
            continue
        happen(seen, event, detail)
        seen.settle()
        if before.phase in TERMINAL_PHASES:
            assert seen.status == before
            assert seen.plan().create is None
        assert seen.status.attempt >= before.attempt


@settings(max_examples=200)
@given(st.lists(st.sampled_from(list(ENDS)), min_size=MAX_ATTEMPTS, max_size=MAX_ATTEMPTS))
def test_a_job_ends_after_a_bounded_number_of_attempts(ends: list[str]) -> None:
    seen = Observations()
    seen.settle()
    for end in ends:
        seen.end_newest(end)
        seen.settle()
        seen.now_s += 400
        seen.settle()
    assert seen.status.phase in TERMINAL_PHASES
    assert seen.status.attempt <= MAX_ATTEMPTS


@settings(max_examples=100)
@given(st.lists(st.sampled_from(list(ENDS)), max_size=8), st.booleans())
def test_a_request_to_stop_always_brings_the_job_to_rest(ends: list[str], lingers: bool) -> None:
    seen = Observations()
    seen.settle()
    for end in ends:
        seen.end_newest(end)
        seen.now_s += 400
        seen.settle()
    seen.stop_requested = True
    seen.settle()
    if lingers:
        seen.now_s += 10_000
        seen.settle()
    seen.end_newest("drained")
    seen.settle()
    assert seen.status.phase in {"Stopped", *TERMINAL_PHASES}
    assert not any(child.is_active for child in seen.children.values())
