"""The report as one Markdown page, from whatever the parts have published so far."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from gpu_report.part import Cell, Result, Verdict
from gpu_report.schedule import Entry

TRAINER_RATIO = 2.5
_WORDS = {True: "yes", False: "**no**", None: "not judged here"}


def render_page(
    heading: str, entries: Sequence[Entry], results: Mapping[str, Result], states: Mapping[str, str]
) -> str:
    """Return the page. states: how each part ended, or that it runs or waits, by name."""
    verdicts = [(entry.name, one) for entry in entries for one in results.get(entry.name, Result()).verdicts]
    verdicts += _compare_with_peer(results)
    lines = ["# GPU report", "", heading, "", "## Verdicts", ""]
    lines += _table(["what", "asked", "got", "holds", "part"], [_verdict_row(name, one) for name, one in verdicts])
    lines += ["", "## Parts", ""]
    lines += _table(["part", "state"], [[entry.title, states.get(entry.name, "waits")] for entry in entries])
    left_out = [(entry.title, text) for entry in entries for text in results.get(entry.name, Result()).left_out]
    if left_out:
        lines += ["", "## Left out", "", *(f"* {title}: {text}." for title, text in left_out)]
    for entry in entries:
        if entry.name in results:
            lines += ["", f"## {entry.title}", "", *_section(results[entry.name])]
    return "\n".join(lines).rstrip() + "\n"


def _compare_with_peer(results: Mapping[str, Result]) -> Iterable[tuple[str, Verdict]]:
    """Yield how the trainer's own step compares with the benchmark's peer on the same machine."""
    for length in (512, 128):
        trained, benched = results.get(f"train-large-{length}"), results.get(f"bench-{length}")
        if trained is None or benched is None:
            continue
        ours, theirs = trained.figures.get("sequences/s"), benched.figures.get("peer, sequences/s")
        if isinstance(ours, int | float) and isinstance(theirs, int | float) and theirs:
            judged = next((one.holds is not None for one in benched.verdicts), False)
            ratio = ours / theirs
            wanted = f"≥ {TRAINER_RATIO}"
            holds = ratio >= TRAINER_RATIO if judged and length == 512 else None
            what = f"trainer's step at {length}, times the benchmark's peer"
            yield f"train-large-{length}", Verdict(what, wanted, f"{ratio:.2f}", holds)


def _verdict_row(name: str, one: Verdict) -> list[Cell]:
    return [one.what, one.wanted, one.got, _WORDS[one.holds], name]


def _section(result: Result) -> list[str]:
    lines: list[str] = []
    for note in result.notes:
        lines += [note, ""]
    if result.figures:
        lines += [*_table(["figure", "value"], [[name, value] for name, value in result.figures.items()]), ""]
    for table in result.tables:
        lines += [f"**{table.title}**", "", *_table(table.columns, table.rows), ""]
    return lines[:-1] if lines else ["Nothing to show."]


def _table(columns: Sequence[str], rows: Sequence[Sequence[Cell]]) -> list[str]:
    body = [[_show(cell) for cell in row] for row in rows] or [["nothing yet", *[""] * (len(columns) - 1)]]
    return ["| " + " | ".join(cells) + " |" for cells in ([*columns], ["---"] * len(columns), *body)]


def _show(cell: Cell) -> str:
    if cell is None:
        return "-"
    if isinstance(cell, bool) or not isinstance(cell, int | float):
        return str(cell).replace("|", "\\|").replace("\n", " ")
    return f"{cell:,}" if isinstance(cell, int) or abs(cell) >= 1000 else f"{cell:.6g}"
