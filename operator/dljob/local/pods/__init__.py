"""Pods as processes: how they start, are watched and removed, and their logs."""
