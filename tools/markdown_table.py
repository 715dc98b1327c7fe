"""Tables of Markdown, for the pages that ``generate`` writes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def render_rows(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table of cells in Markdown; a bar would end its cell, even within code, and is escaped."""
    marked = ([cell.replace("|", "\\|") for cell in row] for row in rows)
    return "\n".join(f"| {' | '.join(row)} |" for row in (head, ["---"] * len(head), *marked))
