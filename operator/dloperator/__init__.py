"""A platform: Kubernetes. Jobs are custom resources, pods are made from their templates."""
