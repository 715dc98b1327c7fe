"""A run as people see it in a terminal or a file, whichever program they started it with."""
