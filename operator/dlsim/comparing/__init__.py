"""
Many simulations at once, summed up as one table: what ``dljob compare`` does.

:mod:`~dlsim.comparing.tasks` says what one simulation is and by which key its result is known,
:mod:`~dlsim.comparing.journal` keeps results on disk, :mod:`~dlsim.comparing.running` plays what
is missing on all cores, :mod:`~dlsim.comparing.summing` makes the table of the results, and
:mod:`~dlsim.comparing.suite` reads the benchmark that is shipped.
"""
