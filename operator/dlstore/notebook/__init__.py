"""What the control loop writes and never waits for: profiles in memory, and what the store is still to be given."""
