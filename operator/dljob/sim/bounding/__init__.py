"""
The numbers behind :mod:`dljob.sim.bounding.bounds`: a lower bound on the mean completion time of any schedule.

:mod:`~dljob.sim.bounding.demands` reads what each job needs out of a workload,
:mod:`~dljob.sim.bounding.dual` computes the bound that given prices of GPUs prove, and
:mod:`~dljob.sim.bounding.ascent` looks for the prices that prove the most.
"""
