"""Builds pods from templates."""
