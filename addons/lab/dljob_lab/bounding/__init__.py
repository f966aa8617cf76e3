"""
The numbers behind :mod:`dljob_lab.bounding.bounds`: a lower bound on the mean completion time of any schedule.

:mod:`~dljob_lab.bounding.demands` reads what each job needs out of a workload,
:mod:`~dljob_lab.bounding.dual` computes the bound that given prices of GPUs prove, and
:mod:`~dljob_lab.bounding.ascent` looks for the prices that prove the most.
"""
