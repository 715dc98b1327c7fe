"""What several ranks do together: collectives, gradient reduction, ZeRO-1, row balancing."""
