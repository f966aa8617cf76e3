"""The evaluation of AFS: its workload, its plays, and the paper's figures next to ours."""
