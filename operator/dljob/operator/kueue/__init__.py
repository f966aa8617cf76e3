"""
The quota of jobs in the queues of Kueue, behind the setting ``kueue.enabled``.

Kueue keeps the quota of teams, and evicts whole Workloads. A job asks for its GPUs in layers: one Workload for its fewest
GPUs, and one for each step above. The GPUs of the admitted layers are the ceiling of the job in every decision, and an
evicted layer is a demand: the job shrinks, and the operator clears the reservation once the release is proven.

:mod:`~dljob.operator.kueue.layers` finds the state that each Workload of a job shall have, as a function of values,
:mod:`~dljob.operator.kueue.workloads` reads and writes their documents, and :mod:`~dljob.operator.kueue.quotas` joins
both to the cluster.
"""
