"""
The SideCar paper's case study, live: what stands behind ``dljob demo``.

Read in this order: :mod:`~dljob_lab.demonstrating.script` says what is played, ``stage`` plays it with
real controllers, SideCars and processes, ``journal`` is what was seen, ``reading`` makes times of it,
and ``reshaping`` measures what changes of GPUs cost here. ``viewing`` shows it while it goes on,
``closing`` sums it up.
"""
