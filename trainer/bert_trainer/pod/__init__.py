"""``bert-pod``: the first process of every container of a job. It starts, watches, stops and reports; it never trains.

Needs the standard library alone, and a folder for temporary files; the root file system may be read-only.
"""
