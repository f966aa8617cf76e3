"""From reports of SideCars to observations for profiles, the times of pods, and the history."""
