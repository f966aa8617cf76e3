"""Workloads: jobs, the truth about their speeds, and how they scale and learn."""
