"""Verbs about the place where jobs run: the server, its GPUs, settings and profiles."""
