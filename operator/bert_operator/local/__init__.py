"""The local executor: runs a job with processes of this machine."""
