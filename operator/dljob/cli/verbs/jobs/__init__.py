"""Verbs that submit and change jobs."""
