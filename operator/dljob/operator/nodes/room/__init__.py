"""Finds nodes for the pods of jobs: suitable ones with enough free resources."""
