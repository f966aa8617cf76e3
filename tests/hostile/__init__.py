"""SideCars and trainings that lie, flood and hang, for honest jobs to be put beside."""
