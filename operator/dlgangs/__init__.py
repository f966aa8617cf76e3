"""
Gangs for pods that are not ours: an extender that a second kube-scheduler asks about every pod.

From the bottom up: ``amounts`` (what pods ask for), ``members`` (the values), ``reading`` (documents to
values) and ``matching`` (which nodes a pod may run on at all); ``placing`` finds nodes for a whole gang
and ``deciding`` says who may have them, both as pure functions; ``book`` keeps what the watches show in
the form of these values; ``decider`` holds what was decided from one time to the next; ``extender``
speaks with kube-scheduler, ``showing`` holds its certificates, and ``running`` puts it all together for
``__main__``. See docs/scheduler-plugin.md.
"""
