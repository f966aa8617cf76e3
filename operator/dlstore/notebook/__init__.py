"""A notebook in front of the store: profiles in memory and queued writes, so the loop never waits."""
