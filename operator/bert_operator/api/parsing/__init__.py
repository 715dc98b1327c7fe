"""From YAML to a valid job, or to everything that is wrong with it."""
