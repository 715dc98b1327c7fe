"""Renders what follows from a job: manifests, and the trainer's run configuration. Pure functions."""
