"""AFS: AFS-L and its relatives, one module each, and the rules that they share."""
