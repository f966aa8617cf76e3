"""The SideCar paper played again: its case study, its runs over traces, and its figures next to ours."""
