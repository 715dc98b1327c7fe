"""Finetune stages: a run per seed, evaluations, the best one's weights."""
