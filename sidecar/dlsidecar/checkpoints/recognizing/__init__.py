"""How a checkpoint is recognized below a path: by its signs, its format, and the shape of earlier ones."""
