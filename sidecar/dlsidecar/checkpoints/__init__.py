"""Checkpoints: how one is requested, seen to be complete, remembered and checked."""
