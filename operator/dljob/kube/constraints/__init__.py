"""Where Kubernetes lets a pod run: selectors, affinity, taints, and the usage of other pods."""
