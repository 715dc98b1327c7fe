"""Independent tasks on several processes, or on the ranks of an MPI job."""
