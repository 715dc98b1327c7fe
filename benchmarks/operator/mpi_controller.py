"""What mpi-operator does first with every MPIJob, and nothing else: writes the status that it was created.

Without it each job's MPIJob is reported as one that no mpi-operator looks at, which takes two more writes; the real one
would make pods as well, whose writes would be measured. A process of its own, since the benchmark's is busy.
"""

from __future__ import annotations

import asyncio
import time

import uvloop

from bert_operator.cluster.client import ApiClient, load_configuration
from bert_operator.cluster.paths import path_of
from bert_operator.timestamps import render_time

WRITERS = 4


async def main() -> None:
    """Write statuses until killed."""
    waiting = asyncio.Queue[tuple[str, str]]()
    async with ApiClient(await load_configuration()) as api:

        async def write() -> None:
            while True:
                namespace, name = await waiting.get()
                now = render_time(time.time())
                created = {
                    "type": "Created",
                    "status": "True",
                    "reason": "MPIJobCreated",
                    "message": f"MPIJob {namespace}/{name} is created.",
                    "lastUpdateTime": now,
                    "lastTransitionTime": now,
                }
                status = {"conditions": [created], "replicaStatuses": {"Launcher": {}, "Worker": {}}, "startTime": now}
                await api.patch(path_of("MPIJob", namespace, name, part="status"), {"status": status})

        writers = [asyncio.create_task(write()) for _ in range(WRITERS)]
        version = (await api.get(path_of("MPIJob", "")))["metadata"]["resourceVersion"]
        print("ready", flush=True)
        async for change in api.stream(
            path_of("MPIJob", ""), silence_s=3600.0, watch="true", resourceVersion=version, timeoutSeconds="3600"
        ):
            if change["type"] == "ADDED":
                metadata = change["object"]["metadata"]
                waiting.put_nowait((metadata["namespace"], metadata["name"]))
            for writer in writers:
                if writer.done():
                    writer.result()


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main())
