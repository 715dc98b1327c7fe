"""The plugin as it is handed out: one file that runs with Python alone, its completion, and krew's manifest."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from bert_operator import __version__
from bert_operator.plugin.command_line import COMPLETE
from kubectl_stand_in import KubectlStandIn, items, says
from seen_jobs import running

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tools"))

from make_plugin import main, modules_of  # noqa: E402 - tools/ is no package

GET = "get bertpretrainjobs.bert-operator.dev"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("plugin")
    assert main(["--output", str(folder)]) == 0
    return folder


def start(program: Path, kubectl: KubectlStandIn, *words: str) -> subprocess.CompletedProcess[str]:
    """Run a program with a Python that has no packages, away from the sources."""
    environment = {
        "PATH": f"{kubectl.folder}:{program.parent}:{Path(sys.executable).parent}:{os.defpath}",
        "LANG": "C.UTF-8",
    }
    command = [program, *words] if program.name != "kubectl-bert" else [sys.executable, "-I", "-S", program, *words]
    return subprocess.run(command, cwd=kubectl.folder, env=environment, capture_output=True, text=True, check=False)


def test_the_file_needs_no_package(made: Path, kubectl: KubectlStandIn) -> None:
    kubectl.answer(GET, items(running()))
    answer = start(made / "kubectl-bert", kubectl, "list")
    assert (answer.returncode, answer.stderr) == (0, "")
    assert answer.stdout.splitlines()[1].startswith("corpus   Running   phase1   57%")
    assert start(made / "kubectl-bert", kubectl, "--version").stdout == f"kubectl bert {__version__}\n"
    assert start(made / "kubectl-bert", kubectl, "doctor", "--help").returncode == 0


def test_the_file_makes_a_support_bundle(made: Path, kubectl: KubectlStandIn) -> None:
    kubectl.answer(GET, says(running()))
    kubectl.answer("get ", items())
    answer = start(made / "kubectl-bert", kubectl, "collect", "corpus", "--output", "bundle.tar.gz")
    assert answer.returncode == 0, answer.stderr
    assert (kubectl.folder / "bundle.tar.gz").is_file()


def test_it_holds_what_it_imports_and_no_more() -> None:
    modules = modules_of("bert_operator.plugin.command_line")
    assert {"bert_operator.plugin.views.status_view", "bert_operator.doctor.command", "bert_operator"} <= set(modules)
    assert not [name for name in modules if name.startswith(("bert_operator.api.", "bert_operator.cluster."))]


def test_the_same_sources_give_the_same_bytes(made: Path, tmp_path: Path) -> None:
    assert main(["--output", str(tmp_path)]) == 0
    for path in made.iterdir():
        assert (tmp_path / path.name).read_bytes() == path.read_bytes(), path.name


def test_krew_is_told_what_it_will_find(made: Path) -> None:
    manifest = yaml.safe_load((made / "bert.yaml").read_text())
    (platform,) = manifest["spec"]["platforms"]
    archive = made / platform["uri"].rpartition("/")[2]
    assert platform["sha256"] == hashlib.sha256(archive.read_bytes()).hexdigest()
    assert manifest["spec"]["version"] == f"v{__version__}"
    assert archive.read_bytes()[:2] == b"\x1f\x8b", "krew takes zip and gzip, by content"
    with tarfile.open(archive, "r:gz") as files:
        modes = {member.name: member.mode for member in files.getmembers()}
    assert modes == {"LICENSE": 0o644, platform["bin"]: 0o755, "kubectl_complete-bert": 0o755}
    # krew's own limits: 50 characters, and lines of a description that fit 80 columns.
    assert len(manifest["spec"]["shortDescription"]) <= 50
    assert max(map(len, manifest["spec"]["description"].splitlines())) <= 80


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["st"], "status :4"),
        (["logs", "corpus", ""], ":4"),
        (["suspend", "corpus", ""], "corpus second :4"),
        (["logs", "--r"], "--rank --request-timeout :4"),
        (["wait", "corpus", "--for", "s"], "stage=NAME step=N stopped stopping succeeded :4"),
        (["status", "-o", ""], "json name wide yaml :4"),
        (["submit", ""], ":0"),
        (["cost", "corpus", "--prices", ""], ":0"),
        (["collect", "corpus", "--output", ""], ":0"),
        (["list", "--kubeconfig", ""], ":0"),
        (["list", "--client-key", ""], ":0"),
        (["status", "--context", "s"], "second :4"),
        (["nothing", ""], ":4"),
    ],
)
def test_words_are_completed(
    kubectl: KubectlStandIn,
    bert: Callable[..., int],
    capsys: pytest.CaptureFixture[str],
    words: list[str],
    expected: str,
) -> None:
    kubectl.answer("config view -o jsonpath={.contexts[*].name}", says("first second"))
    kubectl.answer(GET, says("second corpus"))
    assert bert(COMPLETE, *words) == 0
    answer = capsys.readouterr()
    assert (answer.out.split(), answer.err) == (expected.split(), "")


@pytest.mark.parametrize(
    ("words", "expected", "asked"),
    [
        (["logs", "-n", "team", "se"], "second :4", "--namespace team get"),
        (["logs", ""], "corpus second :4", "get"),
    ],
)
def test_the_file_beside_it_asks_with_the_words_as_they_are(
    made: Path, kubectl: KubectlStandIn, words: list[str], expected: str, asked: str
) -> None:
    kubectl.answer(GET, says("second corpus"))
    answer = start(made / "kubectl_complete-bert", kubectl, *words)
    assert (answer.stdout.split(), answer.stderr) == (expected.split(), "")
    assert kubectl.calls()[0].startswith(asked)


def test_a_cluster_that_does_not_answer_completes_nothing(made: Path, kubectl: KubectlStandIn) -> None:
    assert start(made / "kubectl_complete-bert", kubectl, "logs", "").stdout == ":4\n"
