"""Every alert has a runbook, every runbook an alert, and both name commands and reasons that there are."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from bert_operator.api.schema.conditions import BlockerReason, FailureReason, Reason
from bert_operator.cluster.job_series import TROUBLES
from bert_operator.plugin.command_line import VERBS
from manifests import KUSTOMIZE, parse

ROOT = Path(__file__).parents[2]
RUNBOOKS = ROOT / "docs/runbooks"
PAGES = sorted(RUNBOOKS.glob("Bert*.md"))
HEADINGS = ["## What it means", "## What to look at", "## What to do"]


def alerts() -> dict[str, dict[str, str]]:
    """Return the annotations of every alert."""
    (document,) = parse((KUSTOMIZE / "components/monitoring/alerts.yaml").read_text())
    rules = [rule for group in document["spec"]["groups"] for rule in group["rules"]]
    return {rule["alert"]: rule["annotations"] for rule in rules}


def test_every_alert_has_a_runbook_and_names_it_and_every_runbook_has_an_alert() -> None:
    assert {page.stem for page in PAGES} == set(alerts())
    assert set(re.findall(r"\]\((Bert\w+)\.md\)", (RUNBOOKS / "README.md").read_text())) == set(alerts())
    for name, told in alerts().items():
        assert told["runbook_url"].endswith(f"/docs/runbooks/{name}.md")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_runbook_says_what_it_means_what_to_look_at_and_what_to_do(page: Path) -> None:
    text = page.read_text()
    assert text.startswith(f"# {page.stem}\n")
    assert re.findall(r"^## .*", text, re.MULTILINE) == HEADINGS
    (commands,) = re.findall(r"^```sh\n(.*?)```$", text, re.MULTILINE | re.DOTALL)
    assert commands.count("\n") >= 2
    verbs = {entry.name: entry for entry in VERBS}
    for line in commands.splitlines():
        words = shlex.split(line)
        assert words[0] in ("kubectl", "bert-operator"), line
        # kubectl finds a plugin only where no flag stands before its name.
        assert words[1] == "bert" or "bert" not in words, line
    for verb in re.findall(r"kubectl bert ([a-z]+)", text):
        assert verb in verbs


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_reasons_that_a_runbook_names_exist(page: Path) -> None:
    known = {member.value for table in (Reason, BlockerReason, FailureReason) for member in table} | {
        *TROUBLES,
        "Error",
    }
    named = set(re.findall(r"`([A-Z][a-z]\w*[a-z])`", page.read_text()))
    assert named - {"Notify", "Restart"} <= known


def test_links_lead_somewhere() -> None:
    for page in PAGES:
        for target in re.findall(r"\]\(([^)#]+)", page.read_text()):
            assert (page.parent / target).is_file(), f"{page.name}: {target}"


@pytest.mark.skipif(shutil.which("promtool") is None, reason="requires promtool")
def test_prometheus_takes_the_rules_and_they_fire_when_they_should(tmp_path: Path) -> None:
    (document,) = parse((KUSTOMIZE / "components/monitoring/alerts.yaml").read_text())
    for rule in [rule for group in document["spec"]["groups"] for rule in group["rules"]]:
        del rule["annotations"]
    (tmp_path / "rules.yaml").write_text(yaml.safe_dump(document["spec"]))
    (tmp_path / "test.yaml").write_text((ROOT / "tests/fixtures/alerts.yaml").read_text())
    for command in (["check", "rules", "rules.yaml"], ["test", "rules", "test.yaml"]):
        done = subprocess.run(["promtool", *command], cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr


def test_the_rules_of_every_alert_are_tried() -> None:
    tried = yaml.safe_load((ROOT / "tests/fixtures/alerts.yaml").read_text())["tests"]
    fired = {case["alertname"] for test in tried for case in test["alert_rule_test"] if case.get("exp_alerts")}
    quiet = {case["alertname"] for test in tried for case in test["alert_rule_test"] if not case.get("exp_alerts")}
    assert fired == quiet == set(alerts())
