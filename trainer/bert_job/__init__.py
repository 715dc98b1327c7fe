"""What a run is: its settings as people write them, once for the operator and the trainer (docs/adr/0013)."""
