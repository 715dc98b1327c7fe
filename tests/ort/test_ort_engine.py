"""``engine: ort`` trains as plain operations do: losses, gradients, resume, ranks with the optimizer's state split.

Needs ONNX Runtime's ORTModule in an environment of its own: ``make test-ort``. Models of two layers, rows of unequal
length, dropout 0 and 0.1, the toy data set. The largest difference of a gradient measured was 2.6e-6 of the largest
gradient, of losses 2e-7 of the loss (fp32; 1.4e-6 of a loss of a few nats).
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from bert_trainer.output.metrics import read_metrics
from tiny_run import environment, pretrain_stage, run_document, write_dataset

pytestmark = [
    pytest.mark.ort,
    pytest.mark.timeout(1200),
    pytest.mark.skipif("BERT_TEST_ORT" not in os.environ, reason="requires BERT_TEST_ORT"),
]

ROOT = Path(__file__).parents[2]
CHILD = Path(__file__).with_name("ort_child.py")
LOSSES, GRADIENTS = 5e-6, 1e-5
FINAL = "checkpoints/phase1-00000006"


def run_ort(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """Run a Python of the environment with ONNX Runtime."""
    python = Path(os.environ["BERT_TEST_ORT"]) / "bin/python"
    kept = environment(BERT_TRAINER_KERNELS="off", PYTHONPATH=f"{ROOT}/trainer:{ROOT}/tests/support")
    return subprocess.run([python, *arguments], env=kept, capture_output=True, text=True, timeout=1000, check=False)


def ask(*arguments: str | Path) -> Any:
    """Return what ``ort_child.py`` prints."""
    done = run_ort(CHILD, *arguments)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


def train(document: dict[str, Any], config_file: Path) -> subprocess.CompletedProcess[str]:
    """Run the trainer to its end; several ranks by torchrun, since that environment has no MPI."""
    config_file.write_text(json.dumps(document))
    ranks = str(document["world"]["ranks"])
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", ranks]
    return run_ort(*(torchrun if ranks != "1" else []), "-m", "bert_trainer", "--config", config_file)


@pytest.mark.parametrize("command", ["passes", "tasks"])
def test_losses_and_gradients_are_those_of_plain_operations(command: str) -> None:
    for case, (*compared, last) in ask(command).items():
        # One graph for rows of any number and length, and it was ONNX Runtime that executed it.
        assert last == {"graphs": 1}, case
        for passed in compared:
            assert passed["found"] == pytest.approx(passed["plain"], rel=LOSSES, abs=0), case
            assert passed["gradients"] < GRADIENTS, (case, passed["worst"])


def test_half_precision_makes_a_graph_that_is_equal_up_to_its_rounding() -> None:
    # What a GPU would be given; a run on processors refuses it. Measured: losses 2.5e-4, gradients 4.6e-3.
    compared, last = ask("half")["fp16"]
    assert last == {"graphs": 1}
    assert compared["found"][:2] == pytest.approx(compared["plain"][:2], rel=1e-3)
    assert compared["found"] != compared["plain"]
    assert compared["gradients"] < 2e-2


def test_a_run_learns_what_the_eager_engine_learns_and_resumes_bit_by_bit(tmp_path: Path) -> None:
    dataset = write_dataset(tmp_path / "dataset")
    runs = {}
    for engine in ("eager", "ort"):
        runs[engine] = run_document(tmp_path / engine, dataset, engine=engine, checkpoint={"every_steps": 3, "keep": 9})
        done = train(runs[engine], tmp_path / f"{engine}.json")
        assert done.returncode == 0, done.stderr[-3000:]
        assert ("engine ort: onnxruntime-training" in done.stderr) == (engine == "ort")
    curves = [[record["loss"] for record in read_metrics(tmp_path / engine) if "loss" in record] for engine in runs]
    assert len(curves[0]) == 6
    assert curves[1] == pytest.approx(curves[0], rel=LOSSES)
    whole = load_file(tmp_path / "ort" / FINAL / "model.safetensors")
    # As if the attempt had been killed behind step 3.
    shutil.rmtree(tmp_path / "ort" / FINAL)
    done = train(runs["ort"], tmp_path / "ort.json")
    assert done.returncode == 0, done.stderr[-3000:]
    resumed = load_file(tmp_path / "ort" / FINAL / "model.safetensors")
    messages = [record.get("message", "") for record in read_metrics(tmp_path / "ort")]
    assert "Resumed, bit-identical" in messages
    assert all(torch.equal(whole[name], resumed[name]) for name in whole)


def test_the_optimizer_s_state_may_be_split_over_ranks(tmp_path: Path) -> None:
    dataset = write_dataset(tmp_path / "dataset")
    ends, environments = {}, {}
    for engine, partitioning in (("ort", "none"), ("ort", "zero1"), ("eager", "zero1")):
        name = f"{engine}-{partitioning}"
        document = run_document(
            tmp_path / name,
            dataset,
            engine=engine,
            collectives="torch",
            world={"ranks": 2, "hosts": 1},
            optimizer={"name": "lamb", "partitioning": partitioning},
            stages=[pretrain_stage(global_batch_size=17, micro_batch_size=3, length={"steps": 4})],
        )
        done = train(document, tmp_path / f"{name}.json")
        assert done.returncode == 0, done.stderr[-3000:]
        last = tmp_path / name / "checkpoints/phase1-00000004"
        ends[name] = load_file(last / "model.safetensors")
        environments[name] = json.loads((last / "manifest.json").read_text())["environment"]
    whole, split, eager = ends.values()
    for name in whole:
        assert torch.equal(whole[name], split[name]), name
        torch.testing.assert_close(split[name], eager[name], rtol=1e-3, atol=1e-5)
    assert environments["ort-zero1"]["kernels"] == "ort-1.19.2"
    assert environments["ort-zero1"]["world_size"] == 2


def test_a_precision_without_kernels_is_refused_by_name(tmp_path: Path) -> None:
    document = run_document(tmp_path / "run", write_dataset(tmp_path / "dataset"), engine="ort", precision="bf16")
    done = train(document, tmp_path / "run.json")
    assert done.returncode == 2
    assert "precision: got 'bf16'; allowed with engine 'ort' on processors: fp32 or avx-fp32" in done.stderr


def test_what_no_graph_can_be_made_of_is_an_error_and_no_fallback() -> None:
    program = (
        "import os, sys, torch\n"
        "from bert_trainer.model.backends.ort.engine import make_graph\n"
        "class Odd(torch.nn.Module):\n"
        "    def __init__(self):\n"
        "        super().__init__()\n"
        "        self.w = torch.nn.Parameter(torch.ones(3, 3))\n"
        "    def forward(self, x):\n"
        "        return torch.linalg.eigvals(self.w * x).abs().sum()\n"
        "make_graph(Odd(), 'fp32')(torch.ones(3, 3)).backward()\n"
    )
    done = run_ort("-c", program)
    assert done.returncode == 1
    assert "linalg_eigvals" in done.stderr
