"""Turns reports of SideCars into observations for profiles, times of pods, and the history."""
