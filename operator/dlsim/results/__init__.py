"""What came of it: records, scores, plots, and what was assumed."""
