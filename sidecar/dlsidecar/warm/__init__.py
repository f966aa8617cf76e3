"""Interpreters that are started ahead, so that a restart is warm."""
