"""The report on a GPU: everything that only a card can show, on one page. ``tools/gpu_report.sh`` starts it."""
