"""Carries out decisions: records them first, then commands SideCars and requests pods."""
