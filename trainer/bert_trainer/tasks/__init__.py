"""Fine-tuning tasks without torch: their files, rows of tokens, metrics and predictions."""
