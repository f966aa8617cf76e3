"""The variants of AFS next to :mod:`dlcore.policies.papers.afs`, whose sharing they use."""
