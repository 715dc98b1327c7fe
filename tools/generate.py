"""Write docs/reference and the CustomResourceDefinition from the code; ``--check`` only lists stale files.

The files are committed, so that they can be read and applied without an installation; do not edit them by hand.
Sources: the pydantic models of the job and of the run configuration, the tables of conditions and metrics, the
docstrings of the Python client, and the command lines' own help. This file holds the list of files and their texts;
how a model becomes a page is in ``model_page``, how it becomes a definition in ``bert_operator.api.crd``.
"""

from __future__ import annotations

import argparse
import difflib
import importlib
import io
import json
import os
import re
import sys
from collections.abc import Callable
from contextlib import redirect_stdout, suppress
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import yaml

from artifact_hub import CHART, render_chart_file
from client_page import render_client_page
from dashboards import DASHBOARDS, render_dashboard
from markdown_table import render_rows
from metrics_page import render_metrics_page
from model_page import MARK, render_model, render_own_fields

ROOT = Path(__file__).resolve().parents[1]
HELP_COLUMNS = 100
YAML_COLUMNS = 120
VALUES_SCHEMA = "charts/bert-operator/values.schema.json"
SET_BY_CHART = {"namespaces", "httpPort", "httpHost", "profiles", "defaultProfile"}
SHAREABLE_TEXTS: dict[str, object] = {
    "reason": "reasons",
    "type": "reasons",
    "completedRuns": {"one of": ["prepare", "training"]},
    "run": {"one of": ["prepare", "training"]},
    "loss": "figure",
    "sequencesPerSecond": "figure",
    "stage": "name of a stage",
    "node": "name of a node",
    "pod": "name of a pod",
    "avoidedNodes": "name of a node",
}
"""Fields of text in a status of which more than their length may be handed on."""
PLUGIN = "kubectl bert"
COMMANDS = {
    "bert-operator": "bert_operator.__main__",
    PLUGIN: "bert_operator.plugin.command_line",
    "bert-data": "bert_trainer.dataset.__main__",
    "bert-train": "bert_trainer.__main__",
}


def render_job_page() -> str:
    """Every field of a BertPretrainJob."""
    from bert_job.run_config import CONTRACT_VERSION, RunConfig
    from bert_operator.api.schema.bert_pretrain_job import BertPretrainJob

    introduction = (
        "What a manifest may hold. Fields that are not named here are refused. A table's first column is the "
        "path as it stands in messages; `[]` stands for every entry of a list."
    )
    run_config = (
        "## The run configuration\n\n"
        "What the operator makes of a job and freezes before the first attempt: `run-config.json`, a JSON document "
        f"of contract version {CONTRACT_VERSION}, and the one thing that configures a trainer. It holds the sections "
        "above, named in snake_case (`micro_batch_size`), with every default filled in; the kind of a stage is a "
        "field of it. Below stands what it has beside them, and what is never empty there."
    )
    page = render_model(BertPretrainJob, title="BertPretrainJob", introduction=introduction)
    return f"{page}\n{run_config}\n\n{render_own_fields(RunConfig, 'bert_job.run_')}\n"


def render_status_page() -> str:
    """Every field of a job's status."""
    from bert_operator.api.schema.status import JobStatus

    introduction = (
        "What the operator reports. The names that stand in `type` and `reason` are listed under "
        "[conditions](conditions.md)."
    )
    return render_model(JobStatus, title="Status of a BertPretrainJob", introduction=introduction)


def render_conditions_page() -> str:
    """Every condition type and reason with the sentence that says when it appears."""
    from bert_operator.api.schema import conditions

    parts = ["# Conditions and reasons", MARK, "Names are for machines and stay; sentences may get clearer."]
    for table in (conditions.ConditionType, conditions.Reason, conditions.BlockerReason, conditions.FailureReason):
        rows = [(f"`{member.value}`", member.sentence) for member in table]
        heading = re.sub(r"(?<=[a-z])(?=[A-Z])", " ", table.__name__).capitalize()
        parts += [
            f"## {heading}",
            str(table.__doc__),
            render_rows(("Name", "Meaning"), rows),
        ]
    return "\n\n".join(parts) + "\n"


def render_cli_page() -> str:
    """The help of every command and subcommand."""
    from bert_operator.plugin.command_line import VERBS

    parts = [
        "# Command lines",
        MARK,
        "Results go to standard output, messages to standard error. Exit status 0 is fine, 1 says that the "
        "run failed, 2 that the input was wrong; what else a command may answer stands in its help.",
    ]
    # Verbs of the plugin are subcommands of bert-operator as well, but for one; their help is the same.
    shared = {entry.name for entry in VERBS if entry.is_shared}
    for command, module in COMMANDS.items():
        text = read_help(module)
        parts += [f"## {command}", f"```text\n{text}\n```"]
        own = [verb for verb in find_verbs(text) if command == PLUGIN or verb not in shared]
        if command == "bert-operator":
            names = ", ".join(f"`{verb}`" for verb in sorted(shared))
            parts.append(f"The help of {names} stands under [{PLUGIN}](#kubectl-bert).")
        for verb in own:
            parts += [f"### {command} {verb}", f"```text\n{read_help(module, verb)}\n```"]
    return "\n\n".join(parts) + "\n"


def read_help(module: str, *verb: str) -> str:
    """Return what ``--help`` prints, at a fixed width and without colours."""
    shown = io.StringIO()
    environment = {"COLUMNS": str(HELP_COLUMNS), "NO_COLOR": "1", "TERM": "dumb"}
    # Not in a process of its own: twenty verbs would each import what their command needs.
    with mock.patch.dict(os.environ, environment), redirect_stdout(shown), suppress(SystemExit):
        importlib.import_module(module).main([*verb, "--help"])
    return "\n".join(line.rstrip() for line in shown.getvalue().strip().splitlines())


def find_verbs(help_text: str) -> list[str]:
    """Return the subcommands, which argparse lists with an indent of four."""
    # The usage ends in dots only if there are any; options are indented by two, their texts by more than four.
    usage, _, rest = help_text.partition("\n\n")
    return re.findall(r"^ {4}([a-z][a-z-]*)(?= {2}|$)", rest, re.MULTILINE) if usage.endswith("...") else []


def render_definition() -> str:
    """The CustomResourceDefinition as YAML, as kustomize and people read it."""
    from bert_operator.api.crd import render_crd
    from bert_operator.yaml_text import render_yaml

    mark = MARK.removeprefix("<!-- ").removesuffix(" -->")
    text = render_yaml(render_crd(), width=YAML_COLUMNS)
    return f"# {mark}\n{text}"


def render_doctor_fields() -> str:
    """Every field of a job's spec, so that the doctor, which has no pydantic, knows its release's definition."""
    from bert_operator.api.crd import render_crd
    from bert_operator.doctor.checks.definition import field_paths

    (version,) = render_crd()["spec"]["versions"]
    spec = version["schema"]["openAPIV3Schema"]["properties"]["spec"]
    return "\n".join(["# Generated by tools/generate.py from the code; edit that.", *field_paths(spec, "spec"), ""])


def render_shareable() -> str:
    """What `kubectl bert collect` may hand on of a job: paths of numbers, times and words of closed lists."""
    from bert_operator.api.crd import render_crd
    from bert_operator.api.schema import conditions
    from bert_operator.state.results import _FIGURES
    from bert_trainer.output.gauges import ON_THE_LINE, ON_THE_LINE_UNLESS_ZERO

    (version,) = render_crd()["spec"]["versions"]
    job = version["schema"]["openAPIV3Schema"]["properties"]
    tables = (conditions.ConditionType, conditions.Reason, conditions.BlockerReason, conditions.FailureReason)
    sources = "\n".join(path.read_text() for path in sorted((ROOT / "trainer/bert_trainer").rglob("*.py")))
    figures = {*ON_THE_LINE, *ON_THE_LINE_UNLESS_ZERO, *_FIGURES, "seconds", "exit_code"}
    shown = {
        "spec": shareable(job["spec"], "spec", {}),
        "status": shareable(job["status"], "status", SHAREABLE_TEXTS),
        "reasons": sorted({member.value for table in tables for member in table}),
        "figures": sorted(figures - {"stage", "slow_rank_host"}),
        "events": sorted(set(re.findall(r"(?:event|report)\(\s*\"([a-z_]+)\"", sources))),
    }
    return json.dumps(shown, indent=1) + "\n"


def shareable(schema: dict[str, Any], name: str, texts: dict[str, object]) -> object:
    """Return the shape of a field for `bert_operator.plugin.sharing`; text is what nothing is said of."""
    if "properties" in schema:
        found = {key: shareable(field, key, texts) for key, field in schema["properties"].items()}
        if texts and found.keys() == {"name", "value"}:
            return {"name": "figures", "value": "figure"}
        return {key: shape for key, shape in found.items() if shape != "text"}
    if schema.get("type") == "array":
        return [shareable(schema["items"], name, texts)]
    if "enum" in schema:
        return {"one of": sorted(str(word) for word in schema["enum"] if word is not None)}
    if schema.get("x-kubernetes-int-or-string"):
        return "amount"
    kinds = {"integer": "number", "number": "number", "boolean": "boolean"}
    if schema.get("type") != "string":
        return kinds.get(str(schema.get("type")), "text")
    return "time" if texts and re.search(r"(Time|At|Since)$", name) else texts.get(name, "text")


def render_chart_values_schema() -> str:
    """The schema of the chart's values with what `settings` may hold; the rest of the file is written by hand."""
    from bert_operator.cluster.settings import Settings

    path = ROOT / VALUES_SCHEMA
    schema = json.loads(path.read_text())
    settings = Settings.model_json_schema(by_alias=True)
    values = yaml.safe_load((ROOT / "charts/bert-operator/values.yaml").read_text())["settings"]
    # The chart sets these itself, from values of their own.
    fields = {key: value for key, value in settings["properties"].items() if key not in SET_BY_CHART}
    schema["properties"]["settings"] = {
        "type": "object",
        "additionalProperties": False,
        # Helm deletes nulls before it looks here; the operator's own default would then hold, and not the chart's.
        "required": [name for name, value in values.items() if value and value != fields[name]["default"]],
        "properties": fields,
    }
    schema["$defs"] = settings["$defs"]
    return json.dumps(schema, indent=2) + "\n"


# Paths from the root of the repository.
FILES: dict[str, Callable[[], str]] = {
    "docs/reference/job.md": render_job_page,
    "docs/reference/status.md": render_status_page,
    "docs/reference/conditions.md": render_conditions_page,
    "docs/reference/cli.md": render_cli_page,
    "docs/reference/metrics.md": render_metrics_page,
    "docs/reference/client.md": render_client_page,
    "deploy/kustomize/base/crd.yaml": render_definition,
    "operator/bert_operator/doctor/fields.txt": render_doctor_fields,
    "operator/bert_operator/plugin/shareable.json": render_shareable,
    VALUES_SCHEMA: render_chart_values_schema,
    CHART: render_chart_file,
    **{
        f"deploy/kustomize/components/monitoring/dashboards/{dashboard.uid}.json": partial(render_dashboard, dashboard)
        for dashboard in DASHBOARDS
    },
}


def compare(name: str, before: str, after: str) -> list[str]:
    """Return the difference between a file and what its source says now."""
    old, new = before.splitlines(), after.splitlines()
    return list(difflib.unified_diff(old, new, name, "its source", lineterm="", n=1))


def main() -> int:
    """Write the files, or compare them; 1 where one is stale."""
    parser = argparse.ArgumentParser(description="Write docs/reference and the CustomResourceDefinition from the code.")
    parser.add_argument("--check", action="store_true", help="write nothing; fail where a file is stale")
    check = parser.parse_args().check
    stale = 0
    for name, render in FILES.items():
        path, text = ROOT / name, render()
        before = path.read_text() if path.exists() else ""
        if text == before:
            continue
        if check:
            stale += 1
            print("\n".join(compare(name, before, text)[:40]), file=sys.stderr)
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
            print(f"wrote {name}")
    if stale:
        print(f"{stale} generated file(s) are older than their source\nhint: make generate", file=sys.stderr)
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main())
