"""The machine and its files: processors, memory, atomic writes, locks, reproducible random bits."""
