"""Events that cannot be written: which of them anybody has lost."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping
from typing import Any

import pytest

from bert_operator.cluster.client import ApiClient, ApiError
from bert_operator.cluster.events import JobEvent
from bert_operator.cluster.metrics import Metrics
from bert_operator.cluster.recorder import EventRecorder
from bert_operator.names import JobRef
from patience import PATIENCE_S


class Refusing(ApiClient):
    """An API server that takes no Event."""

    def __init__(self, error: ApiError) -> None:
        self.error = error
        self.asked = asyncio.Event()

    def now_s(self) -> float:
        return 0.0

    async def create(self, path: str, document: Mapping[str, Any]) -> dict[str, Any]:
        self.asked.set()
        raise self.error


TERMINATING = "events is forbidden: unable to create new content in namespace a because it is being terminated"


@pytest.mark.parametrize(
    ("error", "dropped"),
    [
        (ApiError(404, "NotFound", 'namespaces "a" not found'), 0),
        (ApiError(403, "Forbidden", TERMINATING), 0),
        (ApiError(403, "Forbidden", 'events is forbidden: User "x" cannot create resource "events"'), 1),
        (ApiError(0, "TimeoutError", "timed out"), 1),
    ],
)
def test_an_event_of_a_namespace_that_goes_is_not_lost(error: ApiError, dropped: int) -> None:
    metrics, api = Metrics(), Refusing(error)

    async def write() -> None:
        recorder = EventRecorder(api, metrics)
        recorder.emit(JobRef("a", "demo"), "uid", JobEvent("Normal", "Running", "Attempt 1 is running"))
        task = asyncio.create_task(recorder.run())
        await asyncio.wait_for(api.asked.wait(), PATIENCE_S)
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task

    asyncio.run(write())
    assert f"bert_operator_events_dropped_total {dropped}.0" in metrics.render().decode()
