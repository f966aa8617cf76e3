"""The variants of AFS beside :mod:`dlcore.policies.papers.afs`, whose sharing they use."""
