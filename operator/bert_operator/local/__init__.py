"""The local executor: runs a job with processes on this machine."""
