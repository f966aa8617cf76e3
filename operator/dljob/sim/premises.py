"""
The assumptions of a simulation, in sentences for people.

``dljob simulate`` prints them below its table and puts them into its JSON, because a figure means
little without them: on how many GPUs jobs may run, where their speeds come from, what a change of
GPUs costs, and what policies know. Everything is read from the workload and the setting that are
played, so the sentences cannot say anything else.
"""

import math
from collections.abc import Iterator, Sequence

from dljob.core.model import Mechanism
from dljob.sim.engine.settings import Setting
from dljob.sim.jobs.workloads import TracedJob, Workload

MOST_COUNTS = 10
"""Up to this many numbers of GPUs are listed one by one; of more, the first and the last."""


def list_premises(workload: Workload, setting: Setting, *, seeds: int = 1) -> tuple[str, ...]:
    """List the assumptions about these jobs and this cluster, which are played with ``seeds`` seeds."""
    jobs, failures = workload.jobs, []
    if setting.outages:
        failures.append(
            "when a node fails, its jobs fall back to their last checkpoint, which is at most "
            f"{setting.checkpoint_every_s:,.0f} s of training old"
        )
    return (
        *_describe_curves(jobs, setting.seed, seeds=seeds),
        *_describe_counts(workload),
        _describe_changes(workload, setting),
        *_describe_live(workload, setting),
        *failures,
        _describe_knowledge(workload, setting),
    )


def _describe_curves(jobs: Sequence[TracedJob], seed: int, *, seeds: int) -> Iterator[str]:
    drawn = [traced for traced in jobs if traced.is_drawn]
    if drawn and seeds > 1:
        yield (
            f"no speeds are known of {_of(len(drawn), jobs)}: each follows a measured scaling curve, "
            f"which each seed from {seed} to {seed + seeds - 1} draws by lot"
        )
    elif drawn:
        curves = len({traced.curve for traced in drawn})
        yield (
            f"no speeds are known of {_of(len(drawn), jobs)}: each follows a measured scaling curve, "
            f"drawn by lot ({curves} different ones, seed {seed}); --jobs-out FILE says which"
        )


def _describe_counts(workload: Workload) -> Iterator[str]:
    """List which jobs are elastic, because policies for rigid jobs use their request alone."""
    elastic = [traced for traced in workload.jobs if len(traced.job.gpus.options) > 1]
    if not elastic:
        yield "all jobs are rigid: each runs on exactly the GPUs that it requests"
        return
    counts = sorted({count for traced in elastic for count in traced.job.gpus.options})
    listed = ", ".join(map(str, counts))
    if len(counts) > MOST_COUNTS:
        listed = f"{len(counts)} numbers from {counts[0]} to {counts[-1]}"
    rule = f" ({workload.rule})" if workload.rule else ""
    yield (
        f"{_of(len(elastic), workload.jobs)} may run on other numbers of GPUs than requested: "
        f"elastic policies choose among {listed}{rule}; other policies give a job what it requests, "
        "and --rigid lets all policies do so"
    )


def _describe_changes(workload: Workload, setting: Setting) -> str:
    costs, gpus = setting.costs, 1
    in_place = setting.mechanism is Mechanism.IN_PLACE
    change_s = costs.process_restart(gpus) if in_place else costs.pod_restart(gpus)
    start_s = costs.pod_start(gpus) + costs.process_start(gpus)
    how = "in place" if in_place else "by recreating its pods"
    measured = any(profile.costs is not None for profile in workload.known.values())
    rest = " unless its profile holds measured costs" if measured else ""
    jobs = workload.jobs
    none = sum(not traced.saves and not traced.declares for traced in jobs)
    broken = sum(not traced.saves and traced.declares for traced in jobs)
    saves = "every job saves a checkpoint when it is asked, so a change of GPUs loses no iteration"
    if none or broken:
        told = [f"{_of(none, jobs)} save no checkpoint"] if none else []
        told += [f"{_of(broken, jobs)} declare one that does not work"] if broken else []
        saves = f"{' and '.join(told)}, so a change of GPUs loses what they have done"
        if setting.tries:
            saves += "; a checkpoint is tried at the first step, and not counted on if it is broken"
    return f"{saves}; a change {how} takes {change_s:,.4g} s and a start {start_s:,.4g} s{rest}"


def _describe_live(workload: Workload, setting: Setting) -> Iterator[str]:
    live = sum(traced.is_live for traced in workload.jobs)
    if live and setting.mechanism is Mechanism.IN_PLACE:
        costs = setting.costs
        yield (
            f"the processes of {_of(live, workload.jobs)} stay where a change leaves the job some of its GPUs: "
            f"it pauses for {costs.live_shrink:.4g} s to have fewer and {costs.live_grow:.4g} s to have more, for "
            "which newcomers start while it trains"
        )


def _describe_knowledge(workload: Workload, setting: Setting) -> str:
    believed = [traced.believed for traced in workload.jobs]
    if all(each is None for each in believed):
        lengths = "the true length of each job"
    elif any(each is not None and math.isinf(each) for each in believed):
        lengths = "no lengths"
    else:
        lengths = "wrong lengths (--size-error)"
    know_speeds = all(
        kind in workload.known and workload.known[kind].speeds == truth.speeds
        for kind, truth in workload.truths.items()
    )
    speeds = "true speeds" if know_speeds else "speeds that are not the true ones"
    if setting.learns and workload.known:
        speeds += ", which they correct by the reports of jobs"
    elif setting.learns:
        speeds = "no speeds and costs but those that jobs report"
    return f"policies know {lengths} and {speeds}"


def _of(count: int, jobs: Sequence[TracedJob]) -> str:
    if count == len(jobs):
        return "all jobs" if count > 1 else "the 1 job"
    return f"{count:,} of {len(jobs):,} jobs"
