"""``kubectl bert list``."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from bert_operator.plugin.job import Job
from kubectl_stand_in import KubectlStandIn, items, refuses, says
from seen_jobs import job, running

RESOURCE = "bertpretrainjobs.bert-operator.dev"
GET = f"get {RESOURCE}"
Bert = Callable[..., int]
BLOCKED = {
    "type": "Blocked",
    "status": "True",
    "reason": "Unschedulable",
    "message": "No node fits the pods.",
    "lastTransitionTime": "2026-01-01T11:00:00Z",
}
JOBS = (
    job("done", phase="Succeeded", attempt=1, completedRuns=["prepare", "training"]),
    running(),
    job("paused", spec={"runPolicy": {"suspend": True}}, phase="Stopped", attempt=1, stage="phase1"),
    job("waits", phase="Pending", reason="Unschedulable", attempt=1, conditions=[BLOCKED]),
    job("new", created="2026-01-01T11:59:00Z"),
)


def test_jobs_that_wait_for_a_person_stand_first(
    bert: Callable[..., int], kubectl: KubectlStandIn, capsys: pytest.CaptureFixture[str]
) -> None:
    kubectl.answer(GET, items(*JOBS))
    assert bert("list") == 0
    assert capsys.readouterr().out.splitlines() == [
        "NAME     PHASE       STAGE    PROGRESS   LOSS    SEQ/S   LEFT        ATTEMPT   AGE        REASON",
        "waits    Blocked     -        -          -       -       -           1         2:00 h     Unschedulable",
        "paused   Stopped     phase1   -          -       -       -           1         2:00 h",
        "new      Unseen      -        -          -       -       -           0         1:00 min",
        "corpus   Running     phase1   57%        6.104   241.4   12:03 min   3         2:00 h",
        "done     Succeeded   -        -          -       -       -           1         2:00 h",
    ]
    assert kubectl.calls() == [f"{GET} -o json"]


def test_a_job_of_another_controller_is_told_from_one_that_nobody_looks_at(
    bert: Callable[..., int], kubectl: KubectlStandIn, capsys: pytest.CaptureFixture[str]
) -> None:
    far = {"managedBy": "kueue.x-k8s.io/multikueue"}
    # Of the second one MultiKueue has copied the status, whose generations are those of another cluster.
    mirrored = job("mirrored", spec=far, phase="Running", attempt=1, stage="phase1", observedGeneration=7)
    kubectl.answer(GET, items(job("far", spec=far), mirrored, job("new")))
    assert bert("list") == 0
    rows = [line.split()[:2] for line in capsys.readouterr().out.splitlines()[1:]]
    assert rows == [["new", "Unseen"], ["mirrored", "Running"], ["far", "Elsewhere"]]
    assert bert("list", "--phase", "elsewhere") == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()[1:]] == ["far"]
    assert not Job(mirrored).is_stale


def test_all_namespaces_and_labels_are_asked_for_as_in_kubectl_get(
    bert: Callable[..., int], kubectl: KubectlStandIn, capsys: pytest.CaptureFixture[str]
) -> None:
    kubectl.answer(GET, items(running()))
    assert bert("list", "-A", "-l", "team=a", "--context", "far", "-n", "ignored") == 0
    assert kubectl.calls() == [f"--context far {GET} --selector team=a --all-namespaces -o json"]
    header, row = capsys.readouterr().out.splitlines()
    assert header.split()[:2] == ["NAMESPACE", "NAME"]
    assert row.split()[:2] == ["team", "corpus"]


def test_wide_adds_checkpoint_reason_and_image(
    bert: Callable[..., int], kubectl: KubectlStandIn, capsys: pytest.CaptureFixture[str]
) -> None:
    kubectl.answer(GET, items(running()))
    assert bert("list", "-o", "wide") == 0
    header, row = capsys.readouterr().out.splitlines()
    assert header.endswith("WORKERS   CHECKPOINT   REASON         IMAGE")
    assert row.endswith("2         phase1 300   ChildRunning   registry.example.com/bert-trainer:1")


def test_names_and_documents_are_for_programs(
    bert: Callable[..., int], kubectl: KubectlStandIn, capsys: pytest.CaptureFixture[str]
) -> None:
    kubectl.answer(GET, items(*JOBS))
    assert bert("list", "-o", "name") == 0
    assert capsys.readouterr().out.splitlines()[0] == "bertpretrainjobs.bert-operator.dev/done"
    for form, read in (("json", json.loads), ("yaml", yaml.safe_load)):
        assert bert("list", "-o", form) == 0
        assert read(capsys.readouterr().out) == {"apiVersion": "v1", "kind": "List", "items": list(JOBS)}


def test_phases_choose_and_a_blocked_job_is_in_two(
    bert: Bert, kubectl: KubectlStandIn, capsys: pytest.CaptureFixture[str]
) -> None:
    kubectl.answer(GET, items(*JOBS))
    for phases, names in (
        ("Running,succeeded", ["done", "corpus"]),
        ("blocked", ["waits"]),
        ("pending", ["waits"]),
        ("queued", []),
    ):
        assert bert("list", "-o", "name", "--phase", phases) == 0
        assert [line.partition("/")[2] for line in capsys.readouterr().out.splitlines()] == names
    assert bert("list", "--phase", "queued") == 0
    assert capsys.readouterr().err == "No BertPretrainJobs in the context's namespace with --phase queued.\n"
    assert bert("list", "--phase", "running,over") == 2
    assert "--phase: got over; allowed: blocked, invalid, stopped" in capsys.readouterr().err


def test_templates_are_printed_by_kubectl(
    bert: Bert, kubectl: KubectlStandIn, capsys: pytest.CaptureFixture[str]
) -> None:
    kubectl.answer(GET, says("corpus second"))
    template = "jsonpath={.items[*].metadata.name}"
    assert bert("list", "-A", "-l", "team=a", "-o", template) == 0
    assert kubectl.calls() == [f"{GET} --selector team=a --all-namespaces --output={template}"]
    assert capsys.readouterr().out == "corpus second\n"
    assert bert("list", "-o", template, "--phase", "running") == 2
    assert "got --phase beside -o jsonpath" in capsys.readouterr().err
    for output in ("jsonpath", "other=x"):
        with pytest.raises(SystemExit, match="2"):
            bert("list", "-o", output)
        assert f"invalid choice: '{output}' (choose from 'wide', 'name'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "coloured"), [((), False), (("--color", "always"), True), (("--color=never",), False)]
)
def test_colours_can_be_asked_for(
    bert: Bert, kubectl: KubectlStandIn, capsys: pytest.CaptureFixture[str], words: tuple[str, ...], coloured: bool
) -> None:
    kubectl.answer(GET, items(running()))
    for asked in ((*words, "list"), ("list", *words)):
        assert bert(*asked) == 0
        assert ("\033[32mRunning" in capsys.readouterr().out) is coloured


def test_no_jobs_are_a_remark_and_no_table(
    bert: Callable[..., int], kubectl: KubectlStandIn, capsys: pytest.CaptureFixture[str]
) -> None:
    kubectl.answer(GET, items())
    assert bert("list", "-n", "team") == 0
    assert capsys.readouterr() == ("", "No BertPretrainJobs in namespace team.\n")


@pytest.mark.parametrize(
    ("answer", "told", "code"),
    [
        pytest.param(
            says("", errors='error: the server doesn\'t have a resource type "bertpretrainjobs"\n', code=1),
            ("the cluster does not know BertPretrainJobs", "hint: install the operator"),
            1,
            id="no definition",
        ),
        pytest.param(
            refuses("Forbidden", 'bertpretrainjobs is forbidden: User "bob" cannot list resource'),
            ("Forbidden: bertpretrainjobs is forbidden", "hint: ask whoever runs the cluster for the roles view"),
            1,
            id="no right",
        ),
        pytest.param(
            says("", errors="The connection to the server 10.0.0.1:6443 was refused - did you specify?\n", code=1),
            ("the API server does not answer", "hint: kubectl cluster-info"),
            1,
            id="no server",
        ),
        pytest.param(
            refuses("Forbidden", "a name with \x1b[2J in it"), ("Forbidden: a name with  [2J in it",), 1, id="signs"
        ),
        pytest.param(
            says("Welcome!\n{}"), ("got 'Welcome!", "hint: run the same command by itself"), 1, id="a wrapper"
        ),
    ],
)
def test_what_went_wrong_is_told_with_a_next_step(
    bert: Callable[..., int],
    kubectl: KubectlStandIn,
    capsys: pytest.CaptureFixture[str],
    answer: dict[str, object],
    told: tuple[str, ...],
    code: int,
) -> None:
    kubectl.answer(GET, answer)
    assert bert("list") == code
    output, remarks = capsys.readouterr()
    assert output == ""
    assert [part for part in told if part not in remarks] == []


BESIDE = (
    'E1124 00:31:02.123456 7 memcache.go:265] "Unhandled Error" err="no list of resources for '
    'metrics.k8s.io/v1beta1: the server could not find the requested resource"\n'
    "Warning: spec.image: this field will change\n"
)


@pytest.mark.parametrize("begins", ["Error from server", "error: error from server"])
@pytest.mark.parametrize(("reason", "code"), [("NotFound", 3), ("Forbidden", 1)])
def test_what_kubectl_says_beside_its_error_is_not_taken_for_it(
    bert: Bert, kubectl: KubectlStandIn, capsys: pytest.CaptureFixture[str], reason: str, code: int, begins: str
) -> None:
    said = f'{BESIDE}{begins} ({reason}): bertpretrainjobs "corpus": no\n'
    kubectl.answer(GET, says("", errors=said, code=1))
    assert bert("status", "corpus") == code
    remarks = capsys.readouterr().err
    assert f'get {RESOURCE} corpus: {"" if code == 3 else "Forbidden: "}bertpretrainjobs "corpus": no\n' in remarks
    assert "memcache" not in remarks


def test_options_to_the_cluster_stand_before_the_verb_or_behind_it(bert: Bert, kubectl: KubectlStandIn) -> None:
    kubectl.answer("get", items())
    for words in (("-n", "team", "--context", "far", "list"), ("list", "-n", "team", "--context", "far"),
                  ("-n", "other", "--context", "far", "list", "-n", "team")):  # fmt: skip
        assert bert(*words) == 0
    assert set(kubectl.calls()) == {f"--context far --namespace team {GET} -o json"}


def test_every_option_to_the_cluster_reaches_kubectl_and_its_hints(
    bert: Bert, kubectl: KubectlStandIn, capsys: pytest.CaptureFixture[str]
) -> None:
    kubectl.answer(GET, says(job("over", phase="Failed")))
    words = "--context far --cluster east --user ann --server https://one:6443 --as bob --as-group team --as-group all"
    words += " --request-timeout 5s --client-key k.pem"
    assert bert("suspend", "over", *words.split()) == 2
    assert kubectl.calls() == [f"{words} {GET} over -o json"]
    assert f"hint: kubectl bert retry over {words} starts" in capsys.readouterr().err


def test_a_missing_kubectl_is_named(
    bert: Callable[..., int], kubectl: KubectlStandIn, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (kubectl.folder / "kubectl").unlink()
    assert bert("list") == 2
    assert capsys.readouterr().err == (
        "kubectl: cannot be started (No such file or directory)\n"
        "hint: install kubectl (https://kubernetes.io/docs/tasks/tools) and put it into PATH\n"
    )
