"""The platform Kubernetes: jobs are custom resources, and pods are made from their templates."""
