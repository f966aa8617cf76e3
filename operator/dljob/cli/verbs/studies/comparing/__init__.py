"""``dljob compare``: many scenarios at once, as one table or as the page of a suite."""
