"""The rules of AFS-L and its relatives."""
