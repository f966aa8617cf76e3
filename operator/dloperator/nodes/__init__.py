"""The nodes of the pool: what is free on them, and the placeholders that reserve GPUs."""
