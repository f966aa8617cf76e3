"""The situation at one instant: jobs, their status, pods and nodes, and the interface to a platform."""
