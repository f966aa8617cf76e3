"""Which GPUs on which nodes: free rooms, needs of pods, limits of namespaces."""
