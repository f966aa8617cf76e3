"""Publishes progress, settings, the table of GPUs, and events on the operator's own pod."""
