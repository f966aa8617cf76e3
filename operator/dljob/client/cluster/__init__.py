"""Jobs on a Kubernetes cluster, as the verbs ask for them: only through its API server."""
