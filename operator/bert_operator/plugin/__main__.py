"""``python -m bert_operator.plugin``, and what the zipapp ``kubectl-bert`` starts."""

from __future__ import annotations

from bert_operator.plugin.command_line import main

if __name__ == "__main__":
    raise SystemExit(main())
