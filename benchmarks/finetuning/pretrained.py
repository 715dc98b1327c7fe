"""The pretrained model that fine-tuning starts from: the laptop demo's, trained for longer, and kept outside the clone.

It is found again by what it depends on: the job, the text and the release of the trainer.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path

import yaml
from trainer_runs import ROOT

from bert_trainer.dataset.corpus.python_docs import python_docs_fingerprint

DEMO = ROOT / "examples/01-laptop/job.yaml"
STEPS, BATCH, LEARNING_RATE = 5000, 32, 2e-3
"""Of phase 1. The demo's 600 steps of 64 end where the loss has just left its first plateau (docs/benchmarks.md, "What
two cores learn"), and fine-tuning from such weights was worse than from random ones."""


def pretrained_model(steps: int = STEPS) -> Path:
    """Return the output folder of a finished run, which is trained the first time."""
    job = yaml.safe_load(DEMO.read_text())
    prepare, phase1 = (
        next(stage for stage in job["spec"]["stages"] if kind in stage) for kind in ("prepare", "pretrain")
    )
    phase1["pretrain"] |= {"globalBatchSize": BATCH, "learningRate": LEARNING_RATE, "length": {"steps": steps}}
    evaluate = {"name": "evaluate", "evaluate": {"sequenceLength": 128}}
    job["spec"] |= {"stages": [prepare, phase1, evaluate], "logging": {"everySteps": 100}}
    content = yaml.safe_dump(job) + python_docs_fingerprint()
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "bert-operator/benchmarks"
    folder = cache / f"finetuning-{hashlib.sha256(content.encode()).hexdigest()[:16]}"
    if (folder / "report.json").exists():
        return folder
    print(f"pretraining {steps} steps into {folder}, once", flush=True)
    folder.parent.mkdir(parents=True, exist_ok=True)
    job["spec"]["output"] = {"path": str(folder), "ifExists": "Resume"}
    file = folder.with_suffix(".yaml")
    file.write_text(yaml.safe_dump(job))
    command = [str(Path(sys.executable).with_name("bert-operator")), "local", str(file)]
    if subprocess.run(command, stdout=subprocess.DEVNULL, check=False).returncode:
        raise SystemExit(f"bench-finetune: pretraining failed, see {folder}")
    return folder
