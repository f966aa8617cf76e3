"""What is known at one instant: jobs, their status, pods and nodes, and what is asked of a platform."""
