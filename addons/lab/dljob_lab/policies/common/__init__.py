"""Code that several baselines share: claims on GPUs, their prices, and a knapsack."""
