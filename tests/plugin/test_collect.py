"""``kubectl bert collect``: an archive with what others need to help, and no text that somebody has chosen.

A secret is planted at every place of the objects and logs, as value and as key, and must not be in any file in any
form. Names are places as well: they are numbered.
"""

from __future__ import annotations

import base64
import copy
import gzip
import io
import json
import tarfile
import urllib.parse
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bert_operator.plugin.bundle import Gathered, make_files
from bert_operator.plugin.job import Job
from bert_operator.plugin.sharing import Numbers, describe, load_shareable, pick
from bert_operator.plugin.verbs import collecting
from kubectl_stand_in import KubectlStandIn, items, refuses, says
from seen_jobs import NOON, UID, pod, progress, record, running

Bert = Callable[..., int]
Json = dict[str, Any]
Place = tuple[str | int, ...]
KNOWN = load_shareable()

SPEC = {
    "image": "registry.example.com/team/image:1",
    "env": [{"name": "TOKEN", "value": "v"}, {"name": "OTHER", "secret": {"name": "n", "key": "k"}}],
    "envFrom": [{"secret": "s"}],
    "volumes": [{"name": "text", "source": {"nfs": {"server": "s", "path": "/p"}, "mountPath": "/mnt/text"}}],
    "program": {"command": ["python", "own.py", "--password", "x"]},
    "resources": {"cpu": "8", "memory": "64Gi", "accelerator": {"resourceName": "nvidia.com/gpu", "perWorker": 4}},
    "scheduling": {
        "nodeSelector": {"pool": "gpu"},
        "tolerations": [{"key": "k", "value": "v", "effect": "NoSchedule"}],
    },
    "profile": "ours",
    "precision": "bf16",
    "seed": 42,
}
METADATA = {
    "annotations": {"kubectl.kubernetes.io/last-applied-configuration": "{}", "note": "text"},
    "labels": {"team": "text"},
    "managedFields": [{"manager": "kubectl", "fieldsV1": {"f:spec": {}}}],
    "ownerReferences": [{"kind": "BertPretrainJob", "name": "corpus", "uid": UID}],
}


def documents() -> Json:
    """Return everything that is read of a job, as one document, so that a place is a path in it."""
    job = running(
        phaseSince=NOON, phaseTimes=[{"phase": "Running", "run": "prepare", "seconds": 5}], logs="kubectl logs"
    )
    job["spec"] |= copy.deepcopy(SPEC)
    job["metadata"] |= copy.deepcopy(METADATA)
    one = pod("corpus-a3-launcher-x", reason="Evicted", message="The node was low on memory.")
    one["metadata"] |= {**copy.deepcopy(METADATA), "labels": {**one["metadata"]["labels"], "team": "text"}}
    one["spec"] |= {
        "containers": [
            {
                "name": "trainer",
                "image": "image",
                "args": ["launcher", "--ranks", "2"],
                "env": [{"name": "A", "value": "b"}],
                "resources": {"requests": {"cpu": "8", "memory": "64Gi", "example.com/card": "1"}},
            }
        ]
    }
    waits = {"terminated": {"reason": "Error", "message": "text", "exitCode": 1, "finishedAt": NOON, "startedAt": NOON}}
    one["status"]["containerStatuses"][0] |= {
        "state": waits,
        "image": "image",
        "imageID": "sha256:0",
        "restartCount": 1,
    }
    one["status"]["conditions"] = [{"type": "Ready", "status": "False", "reason": "PodCompleted", "message": "text"}]
    child = {
        "kind": "MPIJob",
        "metadata": {"name": "corpus-a3", "namespace": "team", "creationTimestamp": NOON, **copy.deepcopy(METADATA)},
        "spec": {
            "slotsPerWorker": 1,
            "sshAuthMountPath": "/mnt/ssh-keys",
            "mpiReplicaSpecs": {"Worker": {"replicas": 2, "template": {"spec": {"containers": [{"name": "x"}]}}}},
        },
        "status": {"conditions": [{"type": "Running", "status": "True", "reason": "MPIJobRunning", "message": "text"}]},
    }
    event = {
        "metadata": {"name": "e", "creationTimestamp": NOON},
        "involvedObject": {"kind": "Pod", "name": "corpus-a3-worker-0", "fieldPath": "spec.containers{trainer}"},
        "type": "Warning",
        "reason": "FailedScheduling",
        "message": "0/3 nodes are available.",
        "lastTimestamp": NOON,
        "source": {"component": "default-scheduler", "host": "node-1"},
        "count": 3,
    }
    log = [
        "Traceback (most recent call last): text",
        record("stage_started", stage="phase1", kind="pretrain", steps=700),
        progress(10, 9.25, sequences_per_s=241.4123, slow_rank_host="node-7"),
        record("failed", reason="OwnError", message='"text=with words"', exit_code=1),
        record("own", stage="phase1", password="text"),  # pragma: allowlist secret
    ]
    return {
        "job": job,
        "objects": [one, child],
        "events": [event],
        "log": [f"2026-01-01T11:00:00.123456789Z {line}" for line in log],
        "versions": {"clientVersion": {"gitVersion": "v1.32.0", "gitCommit": "text"}, "serverVersion": {}},
    }


def bundle(found: Json) -> dict[str, str]:
    gathered = Gathered(
        job=Job(found["job"]),
        objects=found["objects"],
        events=found["events"],
        logs={str(found["objects"][0].get("metadata", {}).get("name")): found["log"]},
        versions=found["versions"],
    )
    return make_files(gathered, KNOWN, Numbers())


def places(value: Any, path: Place = ()) -> Iterator[Place]:
    """Yield the path of every text, and of every key of a mapping, which ends in its own number behind a ``key``."""
    if isinstance(value, dict):
        for number, (key, item) in enumerate(value.items()):
            yield (*path, "key", number)
            yield from places(item, (*path, "value", key))
    elif isinstance(value, list):
        for number, item in enumerate(value):
            yield from places(item, (*path, "value", number))
    elif isinstance(value, str):
        yield path


def plant(document: Json, place: Place, secret: str) -> Json:
    """Return the document with a secret at a place: as the text or the key, or before it and behind it."""
    planted = copy.deepcopy(document)
    *steps, last = [place[number : number + 2] for number in range(0, len(place), 2)]
    parent: Any = planted
    for _, key in steps:
        parent = parent[key]
    kind, key = last
    if kind == "key":
        entries = list(parent.items())
        entries[int(key)] = (secret, entries[int(key)][1])
        parent.clear()
        parent.update(entries)
    else:
        parent[key] = secret
    return planted


# But for the parts of this test's own document.
PLACES = [place for place in places(documents()) if len(place) > 2]


def forms(secret: str) -> Iterator[str]:
    """Yield a secret as it might be written."""
    raw = secret.encode()
    yield from (secret, secret[::-1], secret.upper(), secret.lower(), secret.swapcase())
    yield from (raw.hex(), raw.hex().upper(), urllib.parse.quote(secret), json.dumps(secret)[1:-1])
    yield from (" ".join(secret), "".join(f"%{byte:02x}" for byte in raw), "".join(f"\\u{byte:04x}" for byte in raw))
    for shift in range(3):
        # What of a secret is the same wherever it begins in a text that is encoded as a whole.
        encoded = base64.b64encode(b"\0" * shift + raw).decode()
        yield encoded[shift and 4 : len(encoded) - 4]
        yield base64.urlsafe_b64encode(b"\0" * shift + raw).decode()[shift and 4 : len(encoded) - 4]
    yield base64.b32encode(raw).decode()[: len(raw)]


def leaks(files: dict[str, str], secret: str) -> list[str]:
    content = "\n".join([*files, *files.values()])
    return [form for form in forms(secret) if form in content]


SECRETS = st.text("abcdefghijkmnpqrstuvwxyzABCDEFGHJKLMNPQRSTUVWXYZ0123456789+/_-", min_size=8, max_size=24).map(
    "hunter2".__add__
)


@pytest.mark.parametrize("wrap", ["{}", "https://user:{}@example.com/", "{}\n", '{{"a": "{}"}}', "v1.{}", "64Gi{}"])
def test_a_secret_at_any_place_is_in_no_file(wrap: str) -> None:
    secret, whole = "hunter2-Qz9/x+W4", documents()
    assert len(PLACES) > 250
    for place in PLACES:
        assert leaks(bundle(plant(whole, place, wrap.format(secret))), secret) == [], place


@settings(max_examples=150)
@given(st.sampled_from(PLACES), SECRETS, st.sampled_from(["", "team ", "Running", "2026-01-01T00:00:00Z "]))
def test_no_secret_of_any_form_is_in_a_file(place: Place, secret: str, before: str) -> None:
    assert leaks(bundle(plant(documents(), place, before + secret)), secret) == []


FIELDS = st.from_regex(r"[a-z_]{1,12}", fullmatch=True)


@settings(max_examples=150)
@given(
    st.sampled_from(["event", "stage", "message", "path", "job", "attempt", "loss", "step", "kind"]) | FIELDS, SECRETS
)
def test_no_secret_of_a_log_line_is_in_a_file(field: str, secret: str) -> None:
    found = documents()
    found["log"] += [
        f"2026-01-01T11:00:01Z {line}"
        for line in (
            f"bert-trainer/1 event=progress {field}={json.dumps(secret)} job={UID} attempt=3",
            f"bert-trainer/1 event=progress {secret}=1 job={UID} attempt=3",
            f"{field}={secret}",
            secret,
        )
    ]
    assert leaks(bundle(found), secret) == []


def test_what_people_need_to_help_is_there() -> None:
    files = bundle(documents())
    job = json.loads(files["job.json"])
    assert job["metadata"]["name"] == "job-1"
    assert job["spec"]["precision"] == "bf16"
    assert job["spec"]["resources"] == {
        "cpu": 8.0,
        "memory": 68720000000.0,
        "accelerator": {"perWorker": 4, "(not listed)": ["(text of 14)"]},
    }
    assert [stage["name"] for stage in job["spec"]["stages"]] == ["stage-1", "stage-2", "stage-3", "stage-4"]
    status = job["status"]
    assert (status["phase"], status["reason"], status["stage"]) == ("Running", "ChildRunning", "stage-2")
    assert status["progress"]["metrics"][0] == {"name": "loss", "value": 6.104}
    (failure,) = status["failures"]
    assert (failure["reason"], failure["exitCode"], failure["finishedAt"]) == ("OOMKilled", 137, "2026-01-01T11:00:00Z")
    (seen,) = json.loads(files["pods.json"])
    assert (seen["attempt"], seen["metadata"]["labels"]["bert-operator.dev/role"]) == (3, "launcher")
    state = seen["status"]["containerStatuses"][0]["state"]["terminated"]
    assert (state["reason"], state["exitCode"]) == ("Error", 1)
    (event,) = json.loads(files["events.json"])
    assert (event["reason"], event["count"], event["message"]) == ("FailedScheduling", 3, "(text of 24)")
    lines = [json.loads(line) for line in files["logs/pod-2.jsonl"].splitlines()]
    assert [line["event"] for line in lines] == ["stage_started", "progress", "failed", "(text of 3)"]
    assert lines[1] == {
        "time": "2026-01-01T11:00:00Z",
        "event": "progress",
        "attempt": 3,
        "stage": "stage-2",
        "step": 10.0,
        "steps": 700.0,
        "loss": 9.25,
        "sequences_per_s": 241.4,
        "(not listed)": ["(text of 6)"],
    }
    assert json.loads(files["versions.json"])["clientVersion"] == "1.32.0"


def test_hostile_numbers_and_times_end_nothing() -> None:
    shape = {"a": "amount", "t": "time", "f": "figure", "n": "number", "b": "boolean"}
    hostile = {"a": "1e999999999", "t": "0001-01-01T00:00:00+23:59", "f": "1e999", "n": float("inf"), "b": 1}
    picked = pick(hostile, shape, Numbers())
    assert picked == {
        "a": "(text of 11)",
        "t": "(text of 25)",
        "f": "(text of 5)",
        "n": "(number)",
        "b": "(number)",
    }
    assert [describe(value) for value in (True, None, [1], {}, 1.5)] == [
        "(boolean)",
        "(nothing)",
        "(list of 1)",
        "(object of 0)",
        "(number)",
    ]
    assert pick({"a": [1]}, {"a": {"b": "number"}}, Numbers()) == {"a": "(list of 1)"}
    assert pick([1], "number", Numbers()) == "(list of 1)"


def test_stages_that_a_program_makes_up_are_not_numbered() -> None:
    found = documents()
    found["log"] = [f"2026-01-01T11:00:00Z {record('progress', stage=f's{number}', step=1)}" for number in range(50)]
    lines = [json.loads(line) for line in bundle(found)["logs/pod-2.jsonl"].splitlines()]
    assert {line["stage"] for line in lines} == {"(text of 2)", "(text of 3)"}


def test_a_number_beyond_all_bounds_is_described() -> None:
    assert pick({"n": 10**400}, {"n": "number"}, Numbers()) == {"n": "(number)"}


def test_half_an_archive_is_not_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Torn(io.FileIO):
        def write(self, _: object) -> int:
            raise KeyboardInterrupt

    monkeypatch.setattr("os.fdopen", Torn)
    with pytest.raises(KeyboardInterrupt):
        collecting._write(tmp_path / "file", {"README.txt": "text"})
    assert not (tmp_path / "file").exists()


def answer(kubectl: KubectlStandIn, found: Json) -> None:
    kubectl.answer("get bertpretrainjobs", says(found["job"]))
    kubectl.answer("get configmaps", items({"kind": "ConfigMap", "metadata": {"name": "c"}, "data": {"k": "hunter2"}}))
    kubectl.answer("get networkpolicies", refuses("Forbidden", "hunter2 may not"))
    kubectl.answer("get jobs.batch --selector", items())
    kubectl.answer("get jobs.batch", says(""))
    kubectl.answer("get mpijobs", items(found["objects"][1]))
    kubectl.answer("get pods", items(found["objects"][0]))
    kubectl.answer("get events", items(*found["events"]))
    kubectl.answer("logs corpus-a3-launcher-x", says("\n".join(found["log"])))
    kubectl.answer("version", says(found["versions"]))


def test_one_archive_is_written_for_its_owner_alone(
    bert: Bert, kubectl: KubectlStandIn, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    answer(kubectl, documents())
    path = tmp_path / "corpus.tar.gz"
    assert bert("collect", "corpus", "--output", str(path)) == 0
    output, remarks = capsys.readouterr()
    with tarfile.open(path, "r:gz") as files:
        names = files.getnames()
        content = {name: files.extractfile(name).read().decode() for name in names}  # type: ignore[union-attr]
    assert names == [line.split()[1] for line in output.splitlines()]
    assert names == [
        *(f"support/{name}.json" if name != "README" else "support/README.txt"
          for name in ("README", "job", "pods", "children", "events", "versions")),
        "support/logs/pod-2.jsonl",
        "support/missing.json",
    ]  # fmt: skip
    assert json.loads(content["support/missing.json"]) == ["networkpolicies.networking.k8s.io"]
    assert "hunter2" not in "".join(content.values())
    assert path.stat().st_mode & 0o777 == 0o600
    assert b"corpus" not in gzip.decompress(path.read_bytes())
    assert b"corpus" not in path.read_bytes()[:40], "gzip writes the file's name into its head"
    assert "pod-2 is corpus-a3-launcher-x" in remarks.splitlines()
    assert remarks.splitlines()[-1] == f"look at the files before you send them: tar -xzf {path}"
    assert bert("collect", "corpus", "--output", str(path)) == 2, "nothing is written over"
    assert "File exists" in capsys.readouterr().err


def test_names_do_not_reach_the_terminal_as_they_are(
    bert: Bert, kubectl: KubectlStandIn, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    found = documents()
    found["job"]["status"]["stage"] = "\x1b]52;c;aGk=\x07"
    answer(kubectl, found)
    assert bert("collect", "corpus", "--output", str(tmp_path / "file")) == 0
    assert "\x1b" not in "".join(capsys.readouterr())
