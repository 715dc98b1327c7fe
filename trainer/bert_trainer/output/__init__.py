"""What a run leaves: its folder, metrics, report, progress lines and termination record."""
