"""The verbs of ``bert-data``, one module each."""
