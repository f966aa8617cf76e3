"""What a training shows: logs, progress, GPUs and full disks."""
