"""Answers the API server's requests for logs as the kubelet of a node whose pods all train, and does nothing else.

Every answer has the newest progress record of the pod's job, which is further on each time. Standard input has a JSON
object: the uid of each launcher's job, by ``namespace/pod``. Prints its port.
"""

from __future__ import annotations

import asyncio
import json
import ssl
import sys
import time
from pathlib import Path

from aiohttp import web

STEPS = 7038
_STARTED_S = time.monotonic()


def main() -> None:
    """Serve until killed. The argument is a file with key and certificate, which the API server does not look at."""
    uids: dict[str, str] = json.load(sys.stdin)
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(Path(sys.argv[1]))

    async def show_log(request: web.Request) -> web.Response:
        uid = uids["{namespace}/{pod}".format_map(request.match_info)]
        elapsed_s = time.monotonic() - _STARTED_S
        step = min(STEPS, int(elapsed_s))
        record = (
            f"bert-trainer/1 event=progress stage=phase1 step={step} steps={STEPS} loss={9 - step / STEPS:.5f} "
            f"mlm_accuracy=0.12 learning_rate=0.004 sequences_per_s=3050.2 real_tokens_per_s=324051.7 "
            f"elapsed_s={elapsed_s:.1f} remaining_s={STEPS - elapsed_s:.0f} job={uid} attempt=1\n"
        )
        return web.Response(text=record)

    application = web.Application()
    application.router.add_get("/containerLogs/{namespace}/{pod}/{container}", show_log)

    async def serve() -> None:
        runner = web.AppRunner(application)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=tls).start()
        print(runner.addresses[0][1], flush=True)
        await asyncio.Event().wait()

    asyncio.run(serve())


if __name__ == "__main__":
    main()
