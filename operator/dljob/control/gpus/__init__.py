"""GPUs as SideCars report them: faults, visibility, and their UUIDs."""
