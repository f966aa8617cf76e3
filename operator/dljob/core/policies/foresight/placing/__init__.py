"""On which nodes the shares of a decision go: where jobs are to be, what that is worth, and what is left."""
