"""The list of jobs of one machine: its file with a copy, and the folders of jobs, which complete a list that was lost."""
