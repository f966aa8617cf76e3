"""A notebook, so that the control loop never waits for the store: profiles in memory, and writes that are still to be made."""
