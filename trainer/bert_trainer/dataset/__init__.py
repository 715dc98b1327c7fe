"""From text to shards, and what reads, checks and converts shards."""
