"""The verbs of `dljob`, one file each."""
