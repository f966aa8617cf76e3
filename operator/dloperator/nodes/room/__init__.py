"""Where the pods of jobs fit: the nodes that suit them, and what is free there."""
