"""Rules between the fields of a run's sections: each one object with its check, the same in CEL, and its message."""
