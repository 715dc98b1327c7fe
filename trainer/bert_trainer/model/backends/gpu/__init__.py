"""The step on NVIDIA GPUs: what a card can do, attention inside rows, compiled layers, and padding to buckets."""
