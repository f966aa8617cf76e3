"""Publishes progress, settings, the state of GPUs, and Events about the operator's own pod."""
