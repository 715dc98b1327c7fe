"""``suspend``, ``resume``, ``retry``, ``wait`` and ``delete``: what is asked of the API server, and what is refused."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import bert_operator.plugin.kubectl
from bert_operator.plugin.kubectl import Kubectl
from kubectl_stand_in import KubectlStandIn, changes, items, refuses, says
from seen_jobs import job, running

RESOURCE = "bertpretrainjobs.bert-operator.dev"
GET = f"get {RESOURCE} corpus"
Bert = Callable[..., int]
Json = dict[str, Any]

SUSPENDED = {"runPolicy": {"suspend": True}}
FAILED = {"phase": "Failed", "reason": "ApplicationRetriesSpent", "message": "Too often.", "attempt": 4}


def patches(kubectl: KubectlStandIn) -> list[str]:
    return [call for call in kubectl.calls() if " patch " in f" {call}"]


def test_suspend_asks_for_the_field_that_people_would_set(
    bert: Bert, kubectl: KubectlStandIn, capsys: pytest.CaptureFixture[str]
) -> None:
    kubectl.answer(GET, says(running()))
    kubectl.answer("patch", says(running(spec=SUSPENDED)))
    assert bert("suspend", "corpus") == 0
    assert capsys.readouterr().out == "team/corpus: suspended; its pods save a checkpoint and leave\n"
    assert patches(kubectl) == [
        f"--namespace team patch {RESOURCE} corpus --type=merge "
        '--patch={"spec": {"runPolicy": {"suspend": true}}} --field-manager=kubectl-bert -o json'
    ]


def test_resume_says_where_the_job_goes_on(
    bert: Bert, kubectl: KubectlStandIn, capsys: pytest.CaptureFixture[str]
) -> None:
    stopped = job(spec=SUSPENDED, phase="Stopped", checkpoint={"stage": "phase1", "step": 300})
    kubectl.answer(GET, says(stopped))
    kubectl.answer("patch", says(stopped))
    assert bert("resume", "corpus") == 0
    assert capsys.readouterr().out == "team/corpus: resumed from phase1 step 300\n"
    assert '"suspend": false' in patches(kubectl)[0]


def test_what_is_so_already_is_said_and_not_written(
    bert: Bert, kubectl: KubectlStandIn, capsys: pytest.CaptureFixture[str]
) -> None:
    kubectl.answer(GET, says(job(spec=SUSPENDED, phase="Stopped")), says(running()))
    assert bert("suspend", "corpus") == 0
    assert bert("resume", "corpus") == 0
    assert capsys.readouterr().out.splitlines() == [
        "team/corpus: is suspended already (Stopped)",
        "team/corpus: is not suspended (Running)",
    ]
    assert patches(kubectl) == []


@pytest.mark.parametrize("verb", ["suspend", "resume"])
def test_a_job_that_has_ended_cannot_be_steered(
    bert: Bert, kubectl: KubectlStandIn, capsys: pytest.CaptureFixture[str], verb: str
) -> None:
    kubectl.answer(GET, says(job(**FAILED)))
    assert bert(verb, "corpus") == 2
    assert capsys.readouterr().err == (
        f"team/corpus has ended as Failed, so it cannot be {verb.removesuffix('e')}ed\n"
        "hint: kubectl bert retry corpus starts a failed job again\n"
    )


def test_suspend_waits_until_the_status_is_about_the_change(
    bert: Bert, kubectl: KubectlStandIn, capsys: pytest.CaptureFixture[str]
) -> None:
    stale = job(phase="Stopped", reason="StoppedOnRequest", observedGeneration=1)
    stale["metadata"]["generation"] = 2
    stopping = job(phase="Stopping", reason="StoppingOnRequest", message="It saves.", attempt=1, observedGeneration=2)
    stopped = job(phase="Stopped", reason="StoppedOnRequest", message="No child is left.", observedGeneration=2)
    for document in (stopping, stopped):
        document["metadata"]["generation"] = 2
    events = changes(("ADDED", stale), ("MODIFIED", stopping), ("MODIFIED", stopped), hangs=True)
    kubectl.answer_watch(RESOURCE, "corpus", events)
    kubectl.answer("patch", says(stale))
    assert bert("suspend", "corpus", "--wait", "--timeout", "20s") == 0
    assert capsys.readouterr().err.splitlines()[-2:] == [
        "corpus Stopping  attempt 1  StoppingOnRequest: It saves.",
        "corpus Stopped  StoppedOnRequest: No child is left.",
    ]


@pytest.mark.parametrize(
    ("awaited", "document"),
    [
        ("running", running()),
        ("stopped", job(phase="Stopped")),
        ("ended", job(phase="Failed")),
        ("succeeded", job(phase="Succeeded")),
        ("checkpoint", running()),
        ("attempt=3", running()),
        ("step=400", running()),
        ("stage=prepare", running()),
        ("condition=Running", running()),
    ],
)
def test_wait_ends_with_what_was_awaited(bert: Bert, kubectl: KubectlStandIn, awaited: str, document: Json) -> None:
    kubectl.answer_watch(RESOURCE, "corpus", changes(("ADDED", job()), ("MODIFIED", document), hangs=True))
    assert bert("wait", "corpus", f"--for={awaited}", "--timeout=30") == 0


@pytest.mark.parametrize("awaited", ["succeeded", "step=500", "attempt=4", "stage=export", "condition=Blocked"])
def test_wait_goes_on_until_then_and_gives_up_in_time(
    bert: Bert, kubectl: KubectlStandIn, capsys: pytest.CaptureFixture[str], awaited: str
) -> None:
    kubectl.answer_watch(RESOURCE, "corpus", changes(("ADDED", running()), hangs=True))
    assert bert("wait", "corpus", f"--for={awaited}", "--timeout=1") == 4
    last = f"corpus: not {awaited} after 1 s; it is Running (ChildRunning)\nhint: kubectl bert status corpus\n"
    assert capsys.readouterr().err.endswith(last)


@pytest.mark.parametrize(
    ("events", "told"),
    [
        pytest.param(
            [("ADDED", job(**FAILED))],
            "corpus has ended as Failed (ApplicationRetriesSpent: Too often.); succeeded was waited for\n",
            id="failed",
        ),
        pytest.param(
            [("ADDED", running()), ("DELETED", running())],
            "corpus was deleted, and succeeded was waited for\n",
            id="deleted",
        ),
    ],
)
def test_what_cannot_happen_any_more_is_not_waited_for(
    bert: Bert,
    kubectl: KubectlStandIn,
    capsys: pytest.CaptureFixture[str],
    events: list[tuple[str, Json]],
    told: str,
) -> None:
    kubectl.answer_watch(RESOURCE, "corpus", changes(*events, hangs=True))
    assert bert("wait", "corpus", "--for=succeeded") == 1
    assert capsys.readouterr().err.endswith(told)


def test_a_watch_that_the_server_ends_is_begun_again(
    bert: Bert, kubectl: KubectlStandIn, capsys: pytest.CaptureFixture[str]
) -> None:
    kubectl.answer_watch(
        RESOURCE,
        "corpus",
        changes(("ADDED", running())),
        says("", errors="The connection to the server 10.0.0.1:6443 was refused\n", code=1),
        changes(("ADDED", job(phase="Succeeded", attempt=3))),
    )
    assert bert("wait", "corpus") == 0
    assert capsys.readouterr() == ("corpus Succeeded  attempt 3\n", "corpus Running  attempt 3  phase1\n"
                                   "corpus Succeeded  attempt 3\n")  # fmt: skip
    assert len(kubectl.calls()) == 4, "read and watched, refused, read"


def test_a_change_between_a_read_and_its_watch_is_not_missed(bert: Bert, kubectl: KubectlStandIn) -> None:
    kubectl.answer(f"{GET} ", says(job()))
    kubectl.answer(f"get {RESOURCE} --field-selector=metadata.name=corpus ", changes(("ADDED", running()), hangs=True))
    assert bert("wait", "corpus", "--for=running", "--timeout=30") == 0


def test_a_deletion_between_a_read_and_its_watch_is_seen(
    bert: Bert, kubectl: KubectlStandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bert_operator.plugin.kubectl, "_MAX_OPENING_S", 0.1)
    kubectl.answer(f"{GET} ", says(running()), refuses("NotFound", "gone"))
    kubectl.answer(f"get {RESOURCE} --field-selector=metadata.name=corpus ", says("", hangs=True))
    assert bert("wait", "corpus", "--for=deleted") == 0


def test_a_deletion_can_be_waited_for(bert: Bert, kubectl: KubectlStandIn) -> None:
    deleted = changes(("ADDED", running()), ("DELETED", running()), hangs=True)
    kubectl.answer_watch(RESOURCE, "corpus", deleted, refuses("NotFound", "gone"))
    assert bert("wait", "corpus", "--for=deleted") == 0
    assert bert("wait", "corpus", "--for=deleted") == 0, "it is gone already"
    assert bert("wait", "corpus", "--for=running") == 3


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--for=done",), "--for: got done; allowed: invalid, pending, queued, running"),
        (("--for=step=many",), "--for: got step=many; allowed:"),
        (("--timeout=soon",), "--timeout: got soon; allowed: a whole number of seconds"),
        (("--for=stage=phase3",), "got stage=phase3, which corpus has not; allowed: prepare, phase1, evaluate, export"),
    ],
)
def test_words_that_mean_nothing_are_answered_with_those_that_do(
    bert: Bert, kubectl: KubectlStandIn, capsys: pytest.CaptureFixture[str], words: tuple[str, ...], told: str
) -> None:
    kubectl.answer_watch(RESOURCE, "corpus", changes(("ADDED", running()), hangs=True))
    assert bert("wait", "corpus", *words) == 2
    assert told in capsys.readouterr().err


def test_retry_deletes_nothing_that_could_not_be_created_again(
    bert: Bert, kubectl: KubectlStandIn, capsys: pytest.CaptureFixture[str]
) -> None:
    kubectl.answer(GET, says(job(**FAILED)))
    kubectl.answer("create --dry-run=server", refuses("Invalid", "spec.model.preset: Unsupported value"))
    assert bert("retry", "corpus") == 1
    assert "Invalid: spec.model.preset: Unsupported value" in capsys.readouterr().err
    assert not any("delete" in call for call in kubectl.calls())


def test_retry_creates_the_same_job_that_resumes(
    bert: Bert,
    kubectl: KubectlStandIn,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    failed = job(**FAILED)
    failed["metadata"] |= {
        "labels": {"team": "a"},
        "annotations": {"kubectl.kubernetes.io/last-applied-configuration": "{}", "note": "mine"},
        "resourceVersion": "7",
        "managedFields": [{}],
    }
    kubectl.answer(GET, says(failed))
    kubectl.answer("create --dry-run=server", refuses("AlreadyExists", "already exists"))
    kubectl.answer("delete", says(""))
    kubectl.answer("create -f - --field-manager", says(job()))
    assert bert("retry", "corpus") == 0
    output, remarks = capsys.readouterr()
    assert output == "team/corpus: created again with output.ifExists: Resume, in claim results, runs/corpus\n"
    assert remarks.startswith(f"the manifest is kept in {tmp_path}/corpus-")
    calls = [call.split(" ")[2] for call in kubectl.calls()[1:]]
    assert calls == ["create", "delete", "create"]
    assert json.loads(kubectl.given("--field-manager")) == {
        "apiVersion": "bert-operator.dev/v1alpha1",
        "kind": "BertPretrainJob",
        "metadata": {
            "name": "corpus",
            "namespace": "team",
            "labels": {"team": "a"},
            "annotations": {"note": "mine"},
        },
        "spec": {**failed["spec"], "output": {**failed["spec"]["output"], "ifExists": "Resume"}},
    }
    assert list(tmp_path.glob("corpus-*")) == []


@pytest.mark.parametrize("ends", ["refused", "interrupted"])
def test_a_manifest_that_could_not_be_created_in_the_end_is_kept(
    bert: Bert,
    kubectl: KubectlStandIn,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    ends: str,
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    kubectl.answer(GET, says(job(**FAILED)))
    kubectl.answer("create --dry-run=server", refuses("AlreadyExists", "already exists"))
    kubectl.answer("delete", says(""))
    kubectl.answer("create -f -", refuses("Forbidden", "exceeded quota"))
    if ends == "interrupted":

        def interrupted(self: Kubectl, *words: str, whole: Callable[..., str] = Kubectl.call, **more: Any) -> str:
            if words[0] == "delete":
                raise KeyboardInterrupt
            return whole(self, *words, **more)

        monkeypatch.setattr(Kubectl, "call", interrupted)
    assert bert("retry", "corpus") == (130 if ends == "interrupted" else 1)
    (kept,) = tmp_path.glob("corpus-*")
    first, second, *_ = capsys.readouterr().err.splitlines()
    assert first == f"the manifest is kept in {kept} until the new job is there"
    assert second == f"team/corpus was not created again. Once it is gone: kubectl create -f {kept}"
    assert json.loads(kept.read_text())["metadata"]["name"] == "corpus"


@pytest.mark.parametrize(
    ("document", "hint"),
    [
        (job(phase="Stopped"), "kubectl bert resume corpus continues it"),
        (running(), "failed attempts of a job that goes on are retried by the operator"),
        (job(phase="Succeeded"), "kubectl bert export corpus prints a manifest for another job"),
    ],
)
def test_only_a_failed_job_is_started_again(
    bert: Bert, kubectl: KubectlStandIn, capsys: pytest.CaptureFixture[str], document: Json, hint: str
) -> None:
    kubectl.answer(GET, says(document))
    assert bert("retry", "corpus") == 2
    assert capsys.readouterr().err.splitlines()[-1] == f"hint: {hint}"


def test_delete_says_what_stays(bert: Bert, kubectl: KubectlStandIn, capsys: pytest.CaptureFixture[str]) -> None:
    kubectl.answer(GET, says(running()))
    kubectl.answer("delete", says("deleted\n"))
    assert bert("delete", "corpus") == 0
    assert capsys.readouterr().out == "team/corpus: deleted; its files stay in claim results, runs/corpus\n"
    assert kubectl.calls()[-1] == f"--namespace team delete {RESOURCE} corpus --cascade=foreground --wait=true"
    assert bert("delete", "corpus", "--no-wait") == 0
    assert kubectl.calls()[-1] == f"--namespace team delete {RESOURCE} corpus --wait=false"


@pytest.mark.parametrize(
    ("how", "suffix", "asked"),
    [
        ("client", " (dry run)", []),
        ("server", " (server dry run)", ["patch", "create", "delete"]),
    ],
)
def test_a_dry_run_says_what_would_be_and_changes_nothing(
    bert: Bert,
    kubectl: KubectlStandIn,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    how: str,
    suffix: str,
    asked: list[str],
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "nowhere"))
    kubectl.answer(f"{GET} ", says(running()))
    kubectl.answer(GET.replace("corpus", "failed"), says(job("failed", **FAILED)))
    for verb in ("patch", "delete"):
        kubectl.answer(verb, says(running()))
    kubectl.answer("create --dry-run=server", refuses("AlreadyExists", "already exists"))
    assert bert("suspend", "corpus", f"--dry-run={how}", "--wait") == 0
    assert bert("retry", "failed", f"--dry-run={how}") == 0
    assert bert("delete", "corpus", f"--dry-run={how}", "--interactive") == 0
    assert capsys.readouterr().out.splitlines() == [
        f"team/corpus: suspended; its pods save a checkpoint and leave{suffix}",
        f"team/failed: created again with output.ifExists: Resume, in claim results, runs/failed{suffix}",
        f"team/corpus: deleted; its files stay in claim results, runs/corpus{suffix}",
    ]
    calls = [call for call in kubectl.calls() if " get " not in f" {call}"]
    assert [call.split()[2] for call in calls] == asked
    assert all("--dry-run=server" in call for call in calls)


def test_jobs_are_chosen_by_labels_or_all_of_them(
    bert: Bert, kubectl: KubectlStandIn, capsys: pytest.CaptureFixture[str]
) -> None:
    kubectl.answer(f"{GET} ", says(running()))
    kubectl.answer(f"{GET.replace('corpus', 'over')} ", says(job("over", **FAILED)))
    kubectl.answer(f"get {RESOURCE}", items(running(), job("over", **FAILED)))
    kubectl.answer("patch", says(running(spec=SUSPENDED)))
    kubectl.answer("delete", says(""))
    assert bert("suspend", "-l", "team=a") == 0
    assert f"get {RESOURCE} --selector team=a -o json" in kubectl.calls()
    assert bert("delete", "--all", "--no-wait") == 0
    assert capsys.readouterr().out.splitlines() == [
        "team/corpus: suspended; its pods save a checkpoint and leave",
        "team/corpus: deleted; its files stay in claim results, runs/corpus",
        "team/over: deleted; its files stay in claim results, runs/over",
    ]


def test_no_job_among_them_is_a_remark(bert: Bert, kubectl: KubectlStandIn, capsys: pytest.CaptureFixture[str]) -> None:
    kubectl.answer(f"get {RESOURCE}", items(job("over", **FAILED)))
    assert bert("resume", "--all") == 0
    assert capsys.readouterr() == ("", "No BertPretrainJob is among them.\n")


@pytest.mark.parametrize(
    ("words", "got"),
    [((), "no job"), (("corpus", "--all"), "names and --all"), (("--all", "-l", "a=b"), "--all and --selector")],
)
def test_jobs_are_chosen_in_one_way(
    bert: Bert, kubectl: KubectlStandIn, capsys: pytest.CaptureFixture[str], words: tuple[str, ...], got: str
) -> None:
    assert bert("delete", *words) == 2
    assert f"got {got}; allowed: names, --all or --selector" in capsys.readouterr().err
    assert kubectl.calls() == []


@pytest.mark.parametrize(("answer", "deleted"), [("y\n", True), ("YES\n", True), ("\n", False), ("", False)])
def test_delete_asks_where_it_is_told_to(
    bert: Bert,
    kubectl: KubectlStandIn,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    answer: str,
    deleted: bool,
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(answer))
    kubectl.answer(GET, says(running()))
    kubectl.answer("delete", says(""))
    assert bert("delete", "corpus", "-i") == 0
    output, remarks = capsys.readouterr()
    assert remarks == "Delete team/corpus, which is Running? Its files stay in claim results, runs/corpus. [y/N]\n"
    assert (output == "team/corpus: not deleted\n") is not deleted
    assert any(" delete " in f" {call}" for call in kubectl.calls()) is deleted


@pytest.mark.parametrize("words", [("-l", ""), ("--selector= ",), ("",)])
def test_an_unset_variable_of_a_shell_means_no_job(
    bert: Bert, kubectl: KubectlStandIn, capsys: pytest.CaptureFixture[str], words: tuple[str, ...]
) -> None:
    kubectl.answer(f"get {RESOURCE}", items(running()))
    for verb in ("delete", "suspend", "resume"):
        assert bert(verb, *words) == 2
        assert "got an empty one" in (told := capsys.readouterr().err) or "got nothing for the name" in told
    assert kubectl.calls() == []


@pytest.mark.parametrize(
    ("verb", "reply", "code", "named_code", "told"),
    [
        ("suspend", says(job("over", **FAILED)), 2, 2, "team/over has ended as Failed, so it cannot be suspended"),
        ("suspend", refuses("NotFound", "over not found"), 3, 3, "over not found"),
        ("delete", refuses("NotFound", "over not found"), 0, 3, "over not found"),
        ("delete", refuses("Forbidden", "may not"), 1, 1, "Forbidden: may not"),
    ],
)
def test_jobs_of_a_list_are_gone_on_with_where_one_has_ended_or_gone_since(
    bert: Bert,
    kubectl: KubectlStandIn,
    capsys: pytest.CaptureFixture[str],
    verb: str,
    reply: Json,
    code: int,
    named_code: int,
    told: str,
) -> None:
    kubectl.answer(f"{GET.replace('corpus', 'over')} ", reply)
    kubectl.answer(f"{GET} ", says(running()))
    kubectl.answer(f"get {RESOURCE}", items(running("over"), running()))
    for change in ("patch", "delete"):
        kubectl.answer(change, says(running()))
    assert bert(verb, "--all") == code
    output, remarks = capsys.readouterr()
    assert output.startswith("team/corpus: ")
    assert told in remarks
    assert bert(verb, "over", "corpus") == named_code
    assert capsys.readouterr().out == "", "of jobs that are named, the first ends it"
