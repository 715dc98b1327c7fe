"""What who has run the demo may want to do next."""

from __future__ import annotations

import sys
from pathlib import Path

from bert_job.console.summary import shown
from bert_operator.api.schema.bert_pretrain_job import BertPretrainJob


def render_next_steps(job: BertPretrainJob, job_file: Path, folder: Path) -> list[tuple[str, str]]:
    """Return what who has trained on the built-in text may want now; nothing for a text of one's own."""
    if not any((stage.prepare.text or "").startswith("builtin:") for stage in job.spec.stages if stage.prepare):
        return []
    programs = Path(sys.executable).parent
    finetune = f"--task mrpc --data downloads/glue/MRPC --model {shown(folder)} --output runs/mrpc"
    return [
        (
            "look at it",
            f"{shown(folder / 'report.html')} in a browser, {shown(folder.parent / 'index.html')} for all runs",
        ),
        ("plot", f"{shown(programs / 'tensorboard')} --logdir {shown(folder / 'tensorboard')}"),
        ("your own text", f"a copy of {shown(job_file)} with another text: and output.path:"),
        ("", f"  {shown(programs / 'bert-operator')} local COPY.yaml"),
        ("fine-tune", f"{shown(programs / 'bert-data')} fetch glue-mrpc"),
        ("", f"  {shown(programs / 'bert-train')} finetune {finetune}"),
        ("a cluster", "the same file by kubectl apply; docs/guides/install.md, docs/guides/kubernetes.md"),
    ]
