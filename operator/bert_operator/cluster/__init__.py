"""The cluster executor: carries plans out with Jobs and MPIJobs of a Kubernetes cluster."""
