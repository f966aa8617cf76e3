"""AFS-L and AFS-P, and variants that share GPUs as they do."""
