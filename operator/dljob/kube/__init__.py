"""Kubernetes as a library: its client, watches, mirror, leases, certificates and events."""
