"""The peer of the benchmark: a client that makes the operator's writes for every job, and nothing else.

Same library, same event loop, same connection pool, as many requests side by side; no watching, no thinking. Names are
those of run.py's jobs. What it writes is what the operator writes for one job.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import uvloop

sys.path.insert(0, str(Path(__file__).parent))

from bert_operator.api.parsing.validation import parse_job
from bert_operator.cluster.client import ApiClient, ApiError, load_configuration
from bert_operator.cluster.events import JobEvent
from bert_operator.cluster.paths import path_of
from bert_operator.cluster.recorder import render_event
from bert_operator.cluster.settings import Settings
from bert_operator.render.children import render_child
from bert_operator.render.frozen import freeze, render_config_map
from bert_operator.state.observed import Observed
from bert_operator.state.plan import plan
from run import job_document, namespace_of_job


async def main(jobs: int) -> None:
    """Make the writes of all jobs as soon as each job exists."""
    job = parse_job(job_document(0))
    job = job.model_copy(update={"metadata": job.metadata.model_copy(update={"uid": "x", "generation": 1})})
    step = plan(job, Observed(), 1_700_000_000.0)
    assert step.create is not None
    frozen = freeze(job, default_image=Settings().trainer_image)
    status = step.status.model_dump(mode="json", by_alias=True)
    templates = [render_config_map(frozen), render_child(frozen, step.create)]
    event = render_event(
        job.ref, "x", JobEvent("Normal", "AttemptStarted", "Created attempt 1 (training)"), "2026-01-01T00:00:00Z"
    )
    waiting = asyncio.Queue[int]()
    for number in range(jobs):
        waiting.put_nowait(number)
    async with ApiClient(await load_configuration()) as api:

        async def work() -> None:
            while not waiting.empty():
                number = waiting.get_nowait()
                name, namespace = f"job-{number}", namespace_of_job(number)
                while True:
                    try:
                        patched = await api.patch(
                            path_of("BertPretrainJob", namespace, name, part="status"), {"status": status}
                        )
                        break
                    except ApiError as error:
                        if error.status != 404:
                            raise
                        await asyncio.sleep(0.01)
                uid = patched["metadata"]["uid"]
                for template in templates:
                    metadata = {
                        **template["metadata"],
                        "name": template["metadata"]["name"].replace("job-0", name),
                        "namespace": namespace,
                        "ownerReferences": [{**template["metadata"]["ownerReferences"][0], "name": name, "uid": uid}],
                    }
                    await api.create(path_of(template["kind"], namespace), {**template, "metadata": metadata})
                own = {**event["metadata"], "name": f"{name}.event", "namespace": namespace}
                about = {**event["involvedObject"], "name": name, "namespace": namespace}
                await api.create(path_of("Event", namespace), {**event, "metadata": own, "involvedObject": about})

        print("ready", flush=True)
        await asyncio.get_running_loop().run_in_executor(None, sys.stdin.readline)
        await asyncio.gather(*(work() for _ in range(Settings().workers)))


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main(int(sys.argv[1])))
