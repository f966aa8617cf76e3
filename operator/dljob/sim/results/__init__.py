"""The results of simulations: records, scores, plots, and their assumptions."""
