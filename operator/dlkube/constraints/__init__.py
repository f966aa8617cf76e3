"""Where Kubernetes lets a pod run: selectors, affinity, taints, and what other pods use."""
