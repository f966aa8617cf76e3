"""From news to new statuses: exits, lost pods, progress, checkpoints and conditions."""
