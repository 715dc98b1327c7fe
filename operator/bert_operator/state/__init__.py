"""The state machine of a job: what is observed, what follows, what the status says. Pure."""
