"""
Many simulations at once, summed up as one table: what ``dljob compare`` does.

:mod:`~dljob_lab.comparing.tasks` says what one simulation is and by which key its result is known,
:mod:`~dljob_lab.comparing.journal` keeps results on disk, :mod:`~dljob_lab.comparing.running` plays what
is missing on all cores, :mod:`~dljob_lab.comparing.summing` makes the table of the results, and
:mod:`~dljob_lab.comparing.suite` reads the benchmark that is shipped.
"""
