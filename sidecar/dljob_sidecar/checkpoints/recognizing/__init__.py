"""Recognises checkpoints below a path by signs, formats, and the shape of earlier ones."""
