"""The nodes of the pool: their free resources, and the placeholders that reserve GPUs."""
