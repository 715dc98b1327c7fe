"""Through which modules a spec field, a sentence and a step go: ``python tools/crossings.py [CHECKOUT ...]``.

The field is a stage's learning rate, from the watch on jobs to the optimizer; the sentence goes from a file of text
through the build of a data set and the loader into the model; of a step its batches are followed, from the loader to
the update. Field and sentence are told apart by a value that nothing else has, and all are followed through the real
code by a probe in every process; ``crossings_probe/sitecustomize.py`` says what is counted. Works on any checkout of
the project, so that two of them are measured by the same script.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PROBE = Path(__file__).parent / "crossings_probe"
RATE = 0.00612345
WORD, PIECES, TOKEN = "zyzzyva", ("zyzz", "##yva"), 29_001
"""The vocabulary has its two pieces, so that the word itself stands in the text alone."""
WORDS = 30_000
BATCH = "bert_trainer.model.batch.Batch"
ENDS = "bert_trainer.optim.optimizer.step"
SETTINGS = {
    "an optimizer's number": "beta2",
    "a stage's option": "after_warmup",
    "a fine-tuning option": "doc_stride",
    "a data option": "near_duplicate_similarity",
    "a health limit": "gradient_norm_factor",
    "a checkpoint interval": "every_seconds",
    "a limit of namespaces": "allow_lock_memory",
    "an environment field": "env_from",
    "a logging field": "sample_ledger",
    "a metric's name": "matthews_correlation",
}
GENERATED = {
    "operator/bert_operator/doctor/fields.txt",
    "operator/bert_operator/plugin/shareable.json",
}

OPERATOR = """
import json, sys
from bert_operator.cluster.paths import path_of
from bert_operator.names import JobRef
from fake_cluster import FakeCluster
from walking_operator import Operator

class Nobody:
    created = described = deleted = lambda *_: None

job = json.load(open(sys.argv[1]))
cluster = FakeCluster()
operator = Operator(cluster, Nobody())
cluster.create(path_of("BertPretrainJob", "demo"), job)
operator.catch_up()
operator.look(JobRef("demo", "field"))
print(cluster.all("ConfigMap")[0]["data"]["run-config.json"])
"""
"""The operator's own index and reconciler on a cluster in memory, as in its tests."""


def main() -> int:
    """Print both ways of each checkout."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("checkouts", type=Path, nargs="*", default=[ROOT])
    totals = []
    for checkout in parser.parse_args().checkouts:
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            dataset, built = build(checkout, folder)
            rendered, operator = reconcile(checkout, folder)
            _, trainer = train(checkout, folder, dataset, rendered, RATE)
            _, loaded = train(checkout, folder, dataset, rendered, TOKEN)
            _, step = train(checkout, folder, dataset, rendered, -1, kind=BATCH)
        for what, parts in (("field", [operator, trainer]), ("sentence", [built, loaded]), ("step", [step])):
            counts = []
            for kind in ("handles", "passes"):
                modules = list(dict.fromkeys(module for part in parts for module in part[kind]))
                counts.append(f"{kind}={len(modules)}")
                print(f"{what}: {kind} {len(modules)} modules of {checkout.name}", *modules, sep="\n  ")
            totals.append(f"crossings: {checkout.name} {what} {' '.join(counts)}")
        found = {name: places(checkout, name) for name in SETTINGS.values()}
        for what, name in SETTINGS.items():
            print(f"{what}: {name} stands in {len(found[name])} files of {checkout.name}", *found[name], sep="\n  ")
        totals.append(f"places_per_setting_max={max(map(len, found.values()))} of {checkout.name}")
    print(*totals, sep="\n")
    return 0


def places(checkout: Path, setting: str) -> list[str]:
    """Return the files of both programs that name a setting, in either spelling, but for generated ones."""
    first, *others = setting.split("_")
    camel = first + "".join(word.title() for word in others)
    words = ["git", "-C", str(checkout), "grep", "-lwE", f"{setting}|{camel}", "--", "operator", "trainer"]
    done = subprocess.run(words, capture_output=True, text=True)
    return [path for path in done.stdout.split() if path not in GENERATED]


Seen = dict[str, list[str]]


def probed(
    checkout: Path, folder: Path, arguments: list[str], number: float, until: str = "", kind: str = ""
) -> tuple[str, Seen]:
    """Run Python with the probe; return what it printed, and the modules in the order in which it saw the value."""
    output = folder / "crossings.txt"
    output.write_text("")
    paths = [PROBE, checkout / "operator", checkout / "trainer", checkout / "tests/support"]
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(map(str, paths)),
        "CROSSINGS_OUTPUT": str(output),
        "CROSSINGS_WORD": WORD if number == TOKEN else str(RATE),
        "CROSSINGS_NUMBER": str(number),
        "CROSSINGS_KIND": kind,
        "CROSSINGS_UNTIL": until,
    }
    done = subprocess.run([sys.executable, *arguments], env=environment, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{' '.join(arguments)} of {checkout} ended with {done.returncode}: {done.stderr[-2000:]}")
    lines = [line.split() for line in output.read_text().splitlines()]
    if until and ["ends", until.rpartition(".")[0]] not in lines:
        raise SystemExit(f"{checkout}: {until} was never called, so that nobody knows where the way ends")
    return done.stdout, {kind: list(dict.fromkeys(m for k, m in lines if k == kind)) for kind in ("handles", "passes")}


def build(checkout: Path, folder: Path) -> tuple[Path, Seen]:
    """Build a data set of a few documents with the word."""
    text, vocabulary = folder / "text", folder / "vocab.txt"
    text.mkdir()
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "."]
    words = [*special, *(f"w{number}" for number in range(WORDS - len(special)))]
    words[TOKEN : TOKEN + 2] = PIECES
    vocabulary.write_text("\n".join(words) + "\n")
    lines = []
    for document in range(40):
        lines += [" ".join(f"w{(document * 97 + line * 31 + at) % 20_000}" for at in range(9)) for line in range(12)]
        lines[-3] = f"w{document} {WORD} w3 w4 w5 ."
        lines.append("")
    (text / "corpus.txt").write_text("\n".join(lines))
    dataset = folder / "dataset"
    command = ["-m", "bert_trainer.dataset", "build", "--text", str(text), "--output", str(dataset)]
    command += ["--vocabulary", str(vocabulary), "--length", "32:5", "--shards", "2", "--processes", "1"]
    return dataset, probed(checkout, folder, command, TOKEN)[1]


def reconcile(checkout: Path, folder: Path) -> tuple[str, Seen]:
    """Have the operator make a job's child; return the run configuration that it froze."""
    claim = {"persistentVolumeClaim": {"claimName": "data"}}
    pretrain = {"sequenceLength": 32, "maxPredictionsPerSequence": 5, "globalBatchSize": 8, "learningRate": RATE}
    job = {
        "apiVersion": "bert-operator.dev/v1alpha1",
        "kind": "BertPretrainJob",
        "metadata": {"name": "field", "namespace": "demo"},
        "spec": {
            "model": {"preset": "base"},
            "dataset": {"path": "dataset", "volume": claim},
            "output": {"path": "run", "volume": claim},
            "stages": [{"name": "phase1", "pretrain": {**pretrain, "length": {"steps": 2}}}],
        },
    }
    (folder / "job.json").write_text(json.dumps(job))
    (folder / "operator.py").write_text(OPERATOR)
    return probed(checkout, folder, [str(folder / "operator.py"), str(folder / "job.json")], RATE)


def train(
    checkout: Path, folder: Path, dataset: Path, rendered: str, number: float, kind: str = ""
) -> tuple[str, Seen]:
    """Train up to the first update by what the operator rendered, with the folders of this machine."""
    document = json.loads(rendered)
    output = folder / f"run-{number}"
    document.update(output_folder=str(output), device="cpu")
    document["dataset"]["folder"] = str(dataset)
    document["model"].update(
        hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64, max_position_embeddings=64
    )
    path = folder / "run-config.json"
    path.write_text(json.dumps(document))
    return probed(checkout, folder, ["-m", "bert_trainer", "--config", str(path)], number, ENDS, kind)


if __name__ == "__main__":
    sys.exit(main())
