"""Who may take a Lease, and when: from what is read of it and the reader's own clock, and from nobody else's."""

from __future__ import annotations

import math
from datetime import UTC, datetime
from typing import Any

import pytest

from bert_operator.cluster.lease import LeaseView, Record, Times, available_at_s, observe_lease, render_spec

NOW = datetime(2026, 1, 2, 3, 4, 5, 678, tzinfo=UTC)
ME, OTHER = "pod-a_1", "pod-b_2"


def lease(holder: str = OTHER, renewed: str = "t1", version: str = "7", **spec: Any) -> dict[str, Any]:
    return {
        "metadata": {"resourceVersion": version},
        "spec": {"holderIdentity": holder, "leaseDurationSeconds": 10, "renewTime": renewed, **spec},
    }


def test_a_lease_that_nobody_has_is_free_at_once() -> None:
    assert available_at_s(observe_lease(None, None, 100.0), ME) == -math.inf
    assert available_at_s(observe_lease(None, lease(""), 100.0), ME) == -math.inf
    assert available_at_s(observe_lease(None, {"metadata": {"resourceVersion": "1"}}, 100.0), ME) == -math.inf


def test_one_that_another_has_is_free_when_its_duration_has_passed_since_it_was_first_seen() -> None:
    assert available_at_s(observe_lease(None, lease(), 100.0), ME) == 110.0
    assert available_at_s(observe_lease(None, lease(leaseDurationSeconds=60), 100.0), ME) == 160.0


@pytest.mark.parametrize("renewed", ["1970-01-01T00:00:00.000000Z", "2999-01-01T00:00:00.000000Z"])
def test_its_times_are_compared_with_no_clock(renewed: str) -> None:
    assert available_at_s(observe_lease(None, lease(renewed=renewed), 100.0), ME) == 110.0


def test_every_renewal_counts_from_when_it_was_seen_and_anything_else_does_not_count() -> None:
    first = observe_lease(None, lease(), 100.0)
    labelled = observe_lease(first, lease(version="8"), 105.0)
    assert labelled == first._replace(version="8")
    renewed = observe_lease(labelled, lease(renewed="t2", version="9"), 106.0)
    assert available_at_s(renewed, ME) == 116.0
    assert available_at_s(observe_lease(renewed, lease("another", renewed="t2"), 107.0), ME) == 117.0


def test_who_deletes_a_lease_does_not_end_the_time_of_its_holder() -> None:
    gone = observe_lease(observe_lease(None, lease(), 100.0), None, 103.0)
    assert (gone.version, available_at_s(gone, ME)) == ("", 110.0)


def test_one_s_own_is_free_to_oneself_as_after_an_answer_that_was_lost() -> None:
    assert available_at_s(observe_lease(None, lease(ME), 100.0), ME) == -math.inf


def test_a_new_holder_begins_anew_and_a_renewal_keeps_what_was() -> None:
    taken = render_spec(Record(OTHER, 10, "t0", "t1", transitions=3), ME, 10, NOW)
    now = "2026-01-02T03:04:05.000678Z"
    assert taken == {
        "holderIdentity": ME, "leaseDurationSeconds": 10, "acquireTime": now, "renewTime": now, "leaseTransitions": 4,
    }  # fmt: skip
    mine = Record(ME, 10, "t0", "t1", transitions=4)
    assert render_spec(mine, ME, 10, NOW) == {**taken, "acquireTime": "t0"}
    given_back = {"holderIdentity": "", "leaseDurationSeconds": 1, "acquireTime": "t0"}
    assert render_spec(mine, "", 10, NOW) == {**taken, **given_back}
    assert render_spec(Record(), ME, 10, NOW)["leaseTransitions"] == 1


def test_the_times_leave_room_for_what_they_have_to() -> None:
    times = Times()
    assert times.renew_every_s + 2 * times.request_s <= times.renew_deadline_s, "two tries of a renewal that is due"
    assert times.renew_deadline_s + times.request_s < times.duration_s, "a write that is on its way"
    # Seen late, waited for, looked at late, and two requests: the pauses get up to a fifth longer.
    assert 2 * 1.2 * times.poll_every_s + times.duration_s + 2 * 0.5 < 15
    assert LeaseView(Record(), "", 0.0).record.holder == ""
