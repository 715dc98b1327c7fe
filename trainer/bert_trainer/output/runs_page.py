"""``index.html`` of a folder of runs: one line for each, newest first, with a link to its report. No script."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from urllib.parse import quote

from bert_job.foreign_text import printable
from bert_trainer.errors import InputError
from bert_trainer.output.charts import sparkline
from bert_trainer.output.pages import form, render
from bert_trainer.output.report import list_by_step
from bert_trainer.output.report_page import PAGE_FILE, write_page
from bert_trainer.output.run_facts import Run, load_run
from bert_trainer.output.run_folder import CONFIG_FILE
from bert_trainer.system.atomic_files import write_atomically

INDEX_FILE = "index.html"
_MAX_RUNS = 500
_MARK = "<title>BERT runs</title>"


def write_report_of(folder: Path) -> Path:
    """Write the report of a run, or the list of the runs in a folder; return its path.

    Raises:
        InputError: the folder is neither, or ``write_page`` and ``write_index`` refuse it.
    """
    return write_page(folder) if (folder / CONFIG_FILE).exists() else write_index(folder)


def write_index(folder: Path) -> Path:
    """Write the list of the runs below a folder and return its path; a page of somebody else stays.

    Raises:
        InputError: the folder holds no run, or another ``index.html``.
    """
    target = folder / INDEX_FILE
    if target.exists() and not (target.is_file() and _MARK in target.read_text(errors="replace")[:2000]):
        raise InputError(
            f"{printable(target)}: got a page that this command has not written; allowed: none, or its own",
            hint="move it away, or list another folder",
        )
    found = sorted(folder.glob(f"*/{CONFIG_FILE}"), key=_age, reverse=True)[:_MAX_RUNS]
    if not found:
        raise InputError(
            f"{printable(folder)}: got a folder without runs; allowed: an output folder, or one whose folders are",
            hint="name a folder that bert-operator local or bert-train has written to",
        )
    runs = [_row(path.parent) for path in found]
    write_atomically(target, render("runs.html", runs=runs, folder=folder.absolute()))
    return target


def _age(path: Path) -> float:
    metrics = path.parent / "metrics.jsonl"
    try:
        return (metrics if metrics.exists() else path).stat().st_mtime
    except OSError:
        return 0.0


def _row(folder: Path) -> dict[str, Any]:
    try:
        run = load_run(folder)
        trained = [stage for stage in run.report["stages"] if stage["steps"]]
        last = trained[-1] if trained else {}
        return {
            "problem": "",
            "folder": folder.name,
            "name": run.config.job.name,
            "link": f"{quote(folder.name)}/{PAGE_FILE}" if (folder / PAGE_FILE).is_file() else "",
            "state": run.state,
            "stages": ", ".join(stage.name for stage in run.config.stages),
            "loss": last.get("lossLast"),
            "curve": _curve(run, str(last.get("name"))),
            "held_out": _held_out(run, last),
            "throughput": last.get("realTokensPerSecond"),
            "seconds": run.report["seconds"],
            "last_record": run.last_record,
        }
    except (InputError, ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError) as error:
        return {"problem": str(error).partition("\n")[0] or type(error).__name__, "folder": folder.name}


def _held_out(run: Run, last: dict[str, Any]) -> str:
    """Return what the run is compared by: its last task's metric, else the masked-LM accuracy."""
    if result := last.get("result"):
        return f"{result['metric']} {form(result['metrics'].get(result['metric']), '.3f')}"
    return form((run.report.get("heldOut") or {}).get("maskedLmAccuracy"), ".1%")


def _curve(run: Run, stage: str) -> str:
    found = list_by_step(list(run.records), stage)
    return sparkline([(float(it["step"] or 0), float(loss)) for it in found if (loss := it.get("loss")) is not None])
