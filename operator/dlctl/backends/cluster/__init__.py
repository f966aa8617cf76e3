"""Jobs on a Kubernetes cluster, as the verbs ask for them: through its API server, and by nobody else."""
