"""The state machine of a job: observed state in, plan and status out. Pure."""
