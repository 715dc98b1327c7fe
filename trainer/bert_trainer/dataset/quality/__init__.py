"""Looking at shards: inspection, verification, statistics."""
