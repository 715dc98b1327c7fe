"""Write what upgrade tests need of a release into ``tests/fixtures/release-<version>/`` of its checkout.

The wheel, the CRD, a job with the ConfigMap that was frozen for it, the output folder of a small run whose process died
after its first checkpoint, with the losses that the same release went on to, and a small dataset with the plain text
that it was made from. ``tests/support/kept_release.py`` runs it in a checkout of the release before; nothing of it is
committed.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests/support"))

from bert_operator import __version__  # noqa: E402
from bert_operator.api.parsing.documents import read_job_document  # noqa: E402
from bert_operator.cluster.render_command import read_for_cluster  # noqa: E402
from bert_operator.cluster.settings import Settings  # noqa: E402
from bert_operator.yaml_text import render_yaml  # noqa: E402
from kept_release import TEXT_TIME_NS  # noqa: E402
from tiny_run import pretrain_stage, run_document, run_trainer, write_dataset  # noqa: E402

UID = "5f0c2a52-6f0e-4a55-9d57-0d6f2f1a0001"
STEPS, SAVED_STEP = 12, 6
RUN = Path("/tmp/kept-release-run")
"""Where the run writes: its configuration names the folder, so it is the same for whoever makes the fixture."""
DATASET = Path("/tmp/kept-release-dataset")
"""Where the dataset is made, for the same reason."""
_WORDS = (
    *("river", "stone", "cloud", "winter", "garden", "letter", "paper", "signal", "engine", "window", "market"),
    *("bridge", "forest", "island", "harbour", "teacher", "doctor", "farmer", "writes", "reads", "builds", "carries"),
    *("follows", "opens", "closes", "the", "a", "of", "in", "under", "over", "with", "and"),
)


def main() -> None:
    """Write the folder of this version."""
    folder = ROOT / f"tests/fixtures/release-{__version__}"
    if folder.exists():
        sys.exit(f"{folder}: exists already; remove it first")
    folder.mkdir(parents=True)
    _build_wheel(folder)
    shutil.copy(ROOT / "deploy/kustomize/base/crd.yaml", folder / "crd.yaml")
    _freeze_job(folder)
    _train(folder)
    _prepare(folder)


def _build_wheel(folder: Path) -> None:
    command = ["-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation", "-w", str(folder), str(ROOT)]
    subprocess.run([sys.executable, *command], check=True)


def _freeze_job(folder: Path) -> None:
    """Write a job as the API server holds it, and the ConfigMap that the operator makes before its first attempt."""
    source = ROOT / "examples/02-two-workers/job.yaml"
    shown = read_for_cluster(read_job_document(source), Settings()).show("objects")
    config_map = next(document for document in yaml.safe_load_all(shown) if document["kind"] == "ConfigMap")
    config_map["metadata"]["ownerReferences"][0]["uid"] = UID
    job = read_job_document(source)
    job["metadata"] = {"name": "two-workers", "namespace": "default", "uid": UID}
    # The API server has filled in the definition's defaults; what only the operator resolves is left out.
    frozen_spec = json.loads(config_map["data"]["spec.json"])
    job["spec"] = {name: value for name, value in frozen_spec.items() if name not in ("image", "slotsPerWorker")}
    for name, document in (("job", job), ("frozen-configmap", config_map)):
        text = render_yaml(document, width=120).replace("00000000-0000-0000-0000-000000000000", UID)
        (folder / f"{name}.yaml").write_text(text)


def _train(folder: Path) -> None:
    """Run to the end, then take away what a run that was killed after its first checkpoint would not have written."""
    shutil.rmtree(RUN, ignore_errors=True)
    dataset = write_dataset(RUN / "data", rows=(20, 20), held_out_rows=10)
    # So large that every step shows in the losses.
    schedule = {"learning_rate": 2e-2, "warmup": {"steps": 2}, "decay": "linear"}
    sizes = {"hidden_size": 16, "num_attention_heads": 1, "intermediate_size": 32}
    document = run_document(
        RUN,
        dataset,
        # A second phase, since what it takes over from the first is part of what was frozen.
        stages=[pretrain_stage(name, length={"steps": STEPS}, **schedule) for name in ("phase1", "phase2")],
        optimizer={"name": "adamw"},
        checkpoint={"every_steps": SAVED_STEP, "keep": 5},
    )
    document["model"].update(sizes)
    with tempfile.TemporaryDirectory() as place:
        done = run_trainer(document, Path(place) / "run-config.json", OMP_NUM_THREADS="1")
    if done.returncode:
        sys.exit(f"the run ended with {done.returncode}:\n{done.stderr}")
    metrics = [json.loads(line) for line in (RUN / "metrics.jsonl").read_text().splitlines()]
    losses = [[entry["stage"], entry["step"], entry["loss"]] for entry in metrics if "loss" in entry]
    (folder / "losses.json").write_text("[\n" + ",\n".join(json.dumps(row) for row in losses) + "\n]" + "\n")
    kept = ("data", "run.json", "run-config.json", f"checkpoints/phase1-{SAVED_STEP:08d}")
    for name in kept:
        source, target = RUN / name, folder / "run" / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copytree(source, target) if source.is_dir() else shutil.copy(source, target)
    shutil.rmtree(RUN)


def _prepare(folder: Path) -> None:
    """Make a dataset by the release's own command. Its record names when the text was written last."""
    shutil.rmtree(DATASET, ignore_errors=True)
    random_words = random.Random(0)
    for name, documents in (("text/a.txt", 12), ("text/more/b.txt", 12)):
        texts = [
            "\n".join(f"{' '.join(random_words.choices(_WORDS, k=9)).capitalize()}." for _ in range(8))
            for _ in range(documents)
        ]
        path = DATASET / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("\n\n".join(texts) + "\n")
        os.utime(path, ns=(TEXT_TIME_NS, TEXT_TIME_NS))
    options = {
        "text": DATASET / "text",
        "output": DATASET / "data",
        "length": "32:5",
        "vocabulary-size": 120,
        "shards": 2,
    }
    words = [str(word) for name, value in options.items() for word in (f"--{name}", value)]
    subprocess.run([sys.executable, "-m", "bert_trainer.dataset", "build", *words], check=True)
    shutil.copytree(DATASET, folder / "dataset", ignore=shutil.ignore_patterns(".*"))
    shutil.rmtree(DATASET)


if __name__ == "__main__":
    main()
