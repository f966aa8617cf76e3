"""
Many simulations at once, summed up as one table: what ``dljob compare`` does.

:mod:`~dljob.sim.comparing.tasks` says what one simulation is and by which key its result is known,
:mod:`~dljob.sim.comparing.journal` keeps results on disk, :mod:`~dljob.sim.comparing.running` plays what
is missing on all cores, :mod:`~dljob.sim.comparing.summing` makes the table of the results, and
:mod:`~dljob.sim.comparing.suite` reads the benchmark that is shipped.
"""
