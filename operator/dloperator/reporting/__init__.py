"""What the operator publishes: progress, settings, the table of GPUs, and events on its own pod."""
