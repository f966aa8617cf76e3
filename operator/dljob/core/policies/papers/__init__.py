"""Policies that papers describe, one module or package each; the docstring of each names the paper."""
