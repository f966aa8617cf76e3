"""Which GPUs on which nodes: free GPUs, room for pods, limits of namespaces."""
