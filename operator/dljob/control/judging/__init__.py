"""Turns news into new statuses: exits, lost pods, progress, checkpoints and conditions."""
