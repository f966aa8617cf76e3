"""
One decision: from a snapshot to a checked plan, in five numbered steps.

The loop of production and the simulator both call :func:`schedule`, and neither does any of
this itself. The same snapshot and policy give the same plan.
"""

from collections.abc import Mapping

from dlcore import checking, placing, planning
from dlcore.model import Cause, CauseCode, Cluster, JobId, JobState, Snapshot
from dlcore.planning import Plan
from dlcore.policies.contract import Policy, View
from dlcore.predicting import Predictor


def schedule(snapshot: Snapshot, policy: Policy) -> Plan:
    """Decide what shall happen now. Raises :class:`dlcore.checking.BrokenLaw`, never returns it."""
    cluster = snapshot.cluster

    # 1. Who is runnable: the others wait or stop, and no policy has to think of them.
    running = tuple(state for state in snapshot.running if not state.job.suspend)
    pending, set_aside = find_runnable(snapshot.pending, cluster)

    # 2. How many GPUs each shall have: the only step that differs between policies.
    decision = policy.allocate(
        View(
            now=snapshot.now,
            cluster=cluster,
            running=running,
            pending=pending,
            predictor=Predictor(
                profiles=snapshot.profiles,
                costs=snapshot.costs,
                mechanism=snapshot.mechanism,
                cluster=cluster,
            ),
            seed=snapshot.seed,
            state=snapshot.policy_state,
        )
    )

    # 3. Which GPUs these are.
    new = decision.shares.keys() - {state.id for state in running}
    newcomers = [state for state in pending if state.id in new] if new else []
    wanted, unplaced = placing.place(decision, running, newcomers, cluster)

    # 4. What has to be done for it.
    waits: Mapping[JobId, Cause] = decision.waits
    if unplaced or set_aside:
        waits = {**decision.waits, **unplaced, **set_aside}
    stop = {s.id: Cause(CauseCode.SUSPENDED) for s in snapshot.running if s.job.suspend}
    steps = planning.diff(snapshot, wanted, waits=waits, wait=decision.wait, stop=stop)
    plan = Plan(steps, len(pending), decision.wake_at, decision.state)

    # 5. Whether it may be done at all.
    checking.check(plan, snapshot, breaks=policy.breaks)
    return plan


def find_runnable(
    pending: tuple[JobState, ...], cluster: Cluster
) -> tuple[tuple[JobState, ...], dict[JobId, Cause]]:
    """
    Split off the jobs that cannot run now whatever a policy decides, with the reason.

    A job too large for the cluster as it is today may fit again when a lost node is back, so it
    waits rather than fails.
    """
    # The cluster's smallest type takes any of the jobs in the usual case; only the rest is looked
    # at one by one, because this runs over thousands of waiting jobs at every event of a replay.
    surely = min(cluster.largest_node.values(), default=0)
    odd = [state for state in pending if state.least > surely or state.picky]
    if not odd:
        return pending, {}
    set_aside = {state.id: cause for state in odd if (cause := _why_not_runnable(state, cluster))}
    if not set_aside:
        return pending, {}
    return tuple([s for s in pending if s.id not in set_aside]), set_aside


def _why_not_runnable(state: JobState, cluster: Cluster) -> Cause | None:
    if state.job.suspend:
        return Cause(CauseCode.SUSPENDED)
    if state.least > placing.largest_possible(state, cluster):
        return Cause(CauseCode.TOO_LARGE, gpus=state.least)
    return None
