"""A scan for known vulnerabilities is never a green empty one, and the VEX document answers for what is known."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
WORKFLOWS = sorted((ROOT / ".github/workflows").glob("*.yaml"))
VEX = json.loads((ROOT / "tools/release/vex.json").read_text())

Json = dict[str, Any]


def package(name: str, *vulnerabilities: Json, version: str = "1.0") -> Json:
    found = {"vulnerabilities": list(vulnerabilities)} if vulnerabilities else {}
    return {"package": {"name": name, "version": version, "ecosystem": "PyPI"}, **found}


def judge(tmp_path: Path, report: Json | str | None, *files: str) -> subprocess.CompletedProcess[str]:
    path = tmp_path / "report.json"
    if report is not None:
        path.write_text(report if isinstance(report, str) else json.dumps(report))
    words = [sys.executable, ROOT / "tools/known_vulnerabilities.py", path, "--scanned", *(files or ("/clone/a.lock",))]
    return subprocess.run(words, capture_output=True, text=True, timeout=50)


def results(*packages: Json, path: str = "/clone/a.lock") -> Json:
    return {"results": [{"source": {"path": path}, "packages": list(packages)}]}


@pytest.mark.parametrize(
    "report",
    [None, "", {}, {"results": []}, {"results": None}, results(), results(package("x"), path="/clone/images/a.lock")],
    ids=["no report", "an empty file", "nothing", "no results", "null", "no packages", "another file's"],
)
def test_a_scan_that_looked_up_nothing_fails(tmp_path: Path, report: Json | str | None) -> None:
    done = judge(tmp_path, report)
    assert done.returncode == 2
    assert "known vulnerabilities: " in done.stderr


def test_one_file_that_was_not_scanned_fails(tmp_path: Path) -> None:
    done = judge(tmp_path, results(package("x")), "/clone/a.lock", "/clone/b.lock")
    assert done.returncode == 2
    assert "no package of /clone/b.lock was looked up" in done.stderr


def test_packages_without_known_vulnerabilities_pass(tmp_path: Path) -> None:
    done = judge(tmp_path, results(package("x"), package("y")))
    assert (done.returncode, done.stdout) == (0, "known vulnerabilities: files=1 packages=2 open=0\n")


def test_what_the_vex_answers_passes_and_the_rest_fails(tmp_path: Path) -> None:
    answered = {"id": "GHSA-1", "aliases": ["CVE-2024-10190"]}
    assert judge(tmp_path, results(package("horovod", answered, version="0.28.1"))).returncode == 0
    done = judge(tmp_path, results(package("horovod", answered, {"id": "CVE-2030-1"}, version="0.28.1")))
    assert done.returncode == 1
    assert done.stdout.splitlines() == [
        "horovod 0.28.1: CVE-2024-10190, GHSA-1: not_affected",
        "horovod 0.28.1: CVE-2030-1: no statement in the VEX",
        "known vulnerabilities: files=1 packages=1 open=1",
    ]


@pytest.mark.parametrize(("name", "version"), [("horovod", "0.29.0"), ("horovod-fork", "0.28.1")])
def test_a_statement_answers_for_its_own_package_and_version_alone(tmp_path: Path, name: str, version: str) -> None:
    done = judge(tmp_path, results(package(name, {"id": "CVE-2024-10190"}, version=version)))
    assert (done.returncode, done.stdout.splitlines()[0].endswith("no statement in the VEX")) == (1, True)


@pytest.mark.parametrize("status", ["affected", "under_investigation"])
def test_a_statement_that_it_reaches_us_does_not_pass(tmp_path: Path, status: str) -> None:
    vex = tmp_path / "vex.json"
    products = [{"@id": "pkg:oci/y", "subcomponents": [{"@id": "pkg:pypi/x@1.0"}]}]
    statement = {"vulnerability": {"name": "CVE-1"}, "status": status, "products": products}
    vex.write_text(json.dumps({"statements": [statement]}))
    done = judge(tmp_path, results(package("x", {"id": "CVE-1"})), "/clone/a.lock", "--vex", str(vex))
    assert (done.returncode, done.stdout.splitlines()[0]) == (1, f"x 1.0: CVE-1: {status}")


def test_the_vex_document_is_one() -> None:
    assert VEX["@context"] == "https://openvex.dev/ns/v0.2.0"
    assert {"@id", "author", "timestamp", "version", "statements"} <= VEX.keys()
    for statement in VEX["statements"]:
        assert statement["status"] in {"not_affected", "affected", "fixed", "under_investigation"}
        assert all(product["@id"].startswith("pkg:") for product in statement["products"])
        # The specification asks for a reason of the one and a next step of the other.
        assert statement["status"] != "not_affected" or statement["justification"]
        assert statement["status"] != "affected" or statement["action_statement"]


def test_what_the_vex_answers_for_is_scanned() -> None:
    files = [path for folder in ("images", "tools") for path in (ROOT / folder).rglob("*.lock")]
    locked = {line for path in files for line in re.findall(r"^(\S+==[^ ;\\]+)", path.read_text(), flags=re.MULTILINE)}
    parts = [
        part["@id"] for item in VEX["statements"] for product in item["products"] for part in product["subcomponents"]
    ]
    assert {part.removeprefix("pkg:pypi/").replace("@", "==") for part in parts} - locked == set()


def test_horovod_s_runner_is_started_by_no_code_of_the_trainer() -> None:
    # What the statements on Horovod say; the laptop's launcher runs horovodrun for a program, never elastic.
    trainer = [path for path in (ROOT / "trainer").rglob("*.py") if "horovod.runner" in path.read_text()]
    assert trainer == []
    launch = (ROOT / "operator/bert_operator/local/launch.py").read_text()
    assert not re.search(r"--(min|max)-n(um-proc|p)|--host-discovery-script|horovod\.run\b", launch)


@pytest.mark.parametrize(("gh", "is_said"), [("exit 1", False), ("exit 0", True)], ids=["it fails", "no release"])
def test_releases_that_cannot_be_listed_fail_the_scan(tmp_path: Path, gh: str, is_said: bool) -> None:
    workflow = yaml.safe_load((ROOT / ".github/workflows/vulnerabilities.yaml").read_text())
    script = workflow["jobs"]["scan"]["steps"][-1]["run"]
    for name in ("bin", "images", "tools"):
        (tmp_path / name).mkdir()
    for name, body in (("gh", gh), ("go", "echo /nowhere")):
        path = tmp_path / "bin" / name
        path.write_text(f"#!/bin/sh\n{body}\n")
        path.chmod(0o755)
    words = ["env", f"PATH={tmp_path / 'bin'}:/usr/bin:/bin", "bash", "-e", "-c", script]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, timeout=50)
    assert done.returncode
    assert ("no release yet" in done.stdout) == is_said


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda path: path.stem)
def test_workflows_name_actions_by_commit_and_start_with_no_rights(workflow: Path) -> None:
    text = workflow.read_text()
    uses = re.findall(r"uses: (.*)", text)
    assert uses
    assert [line for line in uses if not re.fullmatch(r"[\w.-]+/[\w./-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+", line)] == []
    document = yaml.safe_load(text)
    assert document["permissions"] == {}
    for job in document["jobs"].values():
        assert job["permissions"], "a job that says nothing gets what the repository's settings give"
        checkouts = [step for step in job["steps"] if str(step.get("uses")).startswith("actions/checkout@")]
        assert all(step["with"]["persist-credentials"] is False for step in checkouts)


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda path: path.stem)
def test_workflows_call_targets_that_the_makefile_has(workflow: Path) -> None:
    targets = set(re.findall(r"^([a-z][\w-]*):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for job in yaml.safe_load(workflow.read_text())["jobs"].values():
        words = [str(word) for word in job.get("strategy", {}).get("matrix", {}).get("target", [])]
        for command in (str(step.get("run") or "") for step in job["steps"]):
            words += [word for line in re.findall(r"\bmake ([^&|\n]*)", command) for word in line.split()]
        assert {word for word in words if re.fullmatch(r"[a-z][\w-]*", word)} <= targets


def test_workflows_run_what_decides_whether_a_change_lands() -> None:
    runs = [path.read_text() for path in WORKFLOWS]
    assert any("./.ci/run" in text for text in runs)
    called = re.findall(r"(?:run: |&& |  )(?:\w+=\S+ )*make ([^&|\n$]*)|target: \[(.*)\]", "\n".join(runs))
    words = {word for groups in called for group in groups for word in re.split(r"[ ,]+", group)}
    parts = re.findall(r"for part in ([^;]+);", (ROOT / ".ci/run").read_text())
    quick = {part for group in parts for part in group.split()}
    assert len(quick) > 8
    assert quick - words == set()


def test_the_job_that_builds_a_release_may_write_and_sign_nothing() -> None:
    document = yaml.safe_load((ROOT / ".github/workflows/release.yaml").read_text())
    assert document["jobs"]["build"]["permissions"] == {"contents": "read"}
    signing = [name for name, job in document["jobs"].items() if "id-token" in job["permissions"]]
    assert signing == ["publish"]
    commands = [str(step.get("run")) for step in document["jobs"]["publish"]["steps"]]
    assert not any("make " in command for command in commands), "what signs builds nothing"


def test_each_image_s_provenance_is_of_the_digest_that_was_pushed() -> None:
    steps = yaml.safe_load((ROOT / ".github/workflows/release.yaml").read_text())["jobs"]["publish"]["steps"]
    (place, push) = next((place, step) for place, step in enumerate(steps) if step.get("id") == "images")
    pushed = re.findall(r"for name in ([^;]+);", push["run"])[0].split()
    assert re.search(r"skopeo copy .*\$registry/\$name:", push["run"])
    assert 'echo "$name=$digest" >> "$GITHUB_OUTPUT"' in push["run"]
    attested = [step["with"] for step in steps[place:] if "attest-build-provenance" in step.get("uses", "")]
    found = {step["subject-name"].rpartition("/")[2]: step for step in attested}
    assert sorted(found) == sorted(pushed)
    for name, step in found.items():
        assert step["subject-name"] == f"${{{{ steps.images.outputs.registry }}}}/{name}"
        assert step["subject-digest"] == f"${{{{ steps.images.outputs.{name} }}}}"
        assert step["push-to-registry"] is True
    page = (ROOT / "docs/guides/verify.md").read_text()
    assert re.search(rf"gh attestation verify oci://ghcr.io/OWNER/{pushed[0]}:", page)


def test_sums_are_signed_in_the_format_that_the_page_asks_for() -> None:
    places = (ROOT / ".github/workflows/release.yaml", ROOT / "docs/guides/verify.md")
    signed, verified = (re.findall(r"cosign (?:sign|verify)-blob [^\n]*", path.read_text()) for path in places)
    assert len(signed) == len(verified) == 1
    assert all(" --new-bundle-format --bundle SHA256SUMS.sigstore.json" in line for line in (*signed, *verified))
