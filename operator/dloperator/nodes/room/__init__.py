"""Where a job's pods have room: the nodes that suit them, and what is free there."""
