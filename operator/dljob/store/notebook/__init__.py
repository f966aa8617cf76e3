"""A notebook in front of the store: profiles and queued writes, so the loop never waits."""
