"""The variants of AFS next to :mod:`dljob.core.policies.papers.afs`, whose sharing they use."""
