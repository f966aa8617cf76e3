"""Baselines that choose how many GPUs each job gets, most of them from papers."""
