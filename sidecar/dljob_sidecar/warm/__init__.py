"""Interpreters that are started in advance, so a restart is warm."""
