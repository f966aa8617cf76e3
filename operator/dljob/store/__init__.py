"""The store of profiles, the history, and the tables of GPUs and jobs, in one file or on a server."""
