"""Pods from templates: how they are built, and what that relies on."""
