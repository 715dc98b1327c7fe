"""What ``microBatchSize: auto`` finds: the trainer's own ``autotune`` on the large model."""

from __future__ import annotations

import json
import re
import subprocess
import sys

from gpu_report.part import Part, Result
from gpu_report.training import make_traced_run


def tune_micro_batch(part: Part) -> None:
    """Run ``bert-train autotune`` and publish its table."""
    result = Result()
    run = make_traced_run(part).with_(
        micro_batch_size="auto", profile=None, global_batch_size=64 if part.small else 512
    )
    configuration = part.folder / "run.json"
    configuration.write_text(json.dumps(run.document(part.folder / "run")))
    command = [sys.executable, "-m", "gpu_report.trainer_process", "autotune", str(configuration)]
    lines = []
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            sys.stdout.write(line)
            lines.append(line.rstrip())
    result.notes.append("```text\n" + "\n".join(lines) + "\n```")
    chosen = re.search(r"microBatchSize: (\d+)", "\n".join(lines))
    if chosen is None:
        result.left_out.append(f"autotune ended with {process.returncode} and chose nothing; output.log says why")
    else:
        result.figures["rows of a micro-batch"] = int(chosen[1])
    result.done = chosen is not None
    part.publish(result)
