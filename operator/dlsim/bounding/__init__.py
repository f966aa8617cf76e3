"""
The numbers behind :mod:`dlsim.bounding.bounds`: a lower bound on the mean completion time of any schedule.

:mod:`~dlsim.bounding.demands` reads what each job needs out of a workload,
:mod:`~dlsim.bounding.dual` computes the bound that given prices of GPUs prove, and
:mod:`~dlsim.bounding.ascent` looks for the prices that prove the most.
"""
