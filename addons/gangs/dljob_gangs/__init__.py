"""
Gangs for pods of other owners: an extender that a second kube-scheduler asks about every pod.

See docs/scheduler-plugin.md.
"""
