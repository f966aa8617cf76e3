"""
The page of a cluster, a program of its own: users log in with their Kubernetes token. See docs/page-cluster.md.

It reads with rights of its own, once for all viewers, and shows each user the part that the API server's reviews allow.
"""
