"""What follows from a job: documents for others to read. Pure functions from values to values."""
