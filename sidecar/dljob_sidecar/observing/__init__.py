"""Observes a training: logs, progress, GPUs and full disks."""
