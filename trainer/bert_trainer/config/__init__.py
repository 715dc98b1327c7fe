"""The run configuration: one JSON document that decides everything the trainer does."""
