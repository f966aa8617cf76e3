"""
Policies played in this process, one after the other, with the files that the command line asks for.

``dljob simulate`` calls :func:`conclude` for one seed and for a live system.
"""

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from dljob.cli.output import printing
from dljob.cli.output.bars import progress_bar
from dljob.cli.output.messages import say
from dljob.cli.output.streams import divert_libraries
from dljob.core.model import JobId
from dljob.installed import PAGES, check_can_draw, find_points, load, miss_add_on
from dljob.sim.engine.settings import Setting
from dljob.sim.errors import BadInput
from dljob.sim.jobs.workloads import TracedJob, Workload
from dljob.sim.results import writing
from dljob.sim.results.looks import LOOKS, Format
from dljob.sim.results.records import JobRecord, Record, Series
from dljob.sim.simulating import Contestant, Outcome, simulate

MOST_NAMED = 10
"""How many of the jobs that were dropped or never ended are named; all are counted."""


@dataclass(frozen=True, kw_only=True)
class Options:
    """The policies, and the files to write."""

    source: object
    """The played trace or system, as errors name it."""
    policies: tuple[Contestant, ...]
    jobs_out: Path | None
    plot: Path | None
    record: Path | None
    formats: tuple[Format, ...]
    look: str


@dataclass(frozen=True)
class Played:
    """The results, policy by policy."""

    outcomes: list[Outcome]
    is_cut: bool = False
    """True if Ctrl-C ended it before all policies were played."""


def conclude(options: Options, workload: Workload, *, setting: Setting) -> Played:
    """Play the workload, report what is missing from its figures, and write the files."""
    check_outputs(options)
    played = play(options, workload, setting=setting)
    outcomes = played.outcomes
    if played.is_cut:
        missing = [contestant.label for contestant in options.policies[len(outcomes) :]]
        say(
            f"interrupted: {len(outcomes)} of {len(options.policies)} policies were played to the end; "
            f"{', '.join(missing)} {'is' if len(missing) == 1 else 'are'} missing"
        )
    if not outcomes:
        return played
    for note in workload.notes:
        say(note)
    report_left_out(outcomes)
    if options.jobs_out is not None:
        rows = [
            row
            for outcome in outcomes
            for row in list_jobs(outcome.score.policy, outcome.record, workload=workload)
        ]
        writing.write_text(options.jobs_out, printing.to_csv(rows))
    if options.plot is not None:
        draw(options.plot, outcomes, options=options)
    if options.record is not None:
        write_records(options.record, outcomes)
    return played


def check_outputs(options: Options) -> None:
    """Refuse files that cannot be written before the replay, not after it."""
    if options.jobs_out is not None:
        writing.check_writable(options.jobs_out)
    if options.plot is not None:
        check_can_draw()
        if "plots" not in find_points(PAGES):
            raise miss_add_on("dljob-lab")
        writing.check_writable(options.plot / "picture.png")
    if options.record is not None:
        writing.check_writable(options.record)


def play(options: Options, workload: Workload, *, setting: Setting) -> Played:
    """Play the workload under every policy, with a bar for a person who watches."""
    keeps = options.jobs_out is not None or options.plot is not None
    outcomes: list[Outcome] = []
    with progress_bar() as bar, divert_libraries():
        watch = bar.watch if bar is not None else None
        try:
            played = simulate(
                workload,
                setting,
                contestants=options.policies,
                watch=watch,
                records=options.record is not None,
            )
            for outcome in played:
                _check_fits(options, outcome.record)
                # The next run needs the memory of all that is not printed.
                bare = replace(outcome.record, log=[], series=Series(), decision_s=array("d"))
                outcomes.append(outcome if keeps else replace(outcome, record=bare))
        except KeyboardInterrupt:
            # The results so far may have taken hours, and the user wants to see them.
            return Played(outcomes, is_cut=True)
    return Played(outcomes)


def _check_fits(options: Options, record: Record) -> None:
    if not record.jobs:
        raise BadInput(
            options.source,
            f"has no job that fits into {record.gpus} GPUs",
            remedy="give a larger cluster, or the types of GPU that its jobs ask for",
        )


def report_left_out(outcomes: Sequence[Outcome]) -> None:
    """Name the jobs that are not in the figures."""
    # Every policy drops the same jobs.
    dropped = outcomes[0].record.dropped
    if dropped:
        say(f"dropped {_name_jobs(dropped)}: more GPUs requested than the cluster has of a type")
    for outcome in outcomes:
        waiting = [job.job for job in outcome.record.unfinished]
        if waiting:
            say(
                f"{outcome.score.policy}: {_name_jobs(waiting)} never finished;"
                " figures of completions leave them out"
            )


def _name_jobs(jobs: Sequence[JobId]) -> str:
    named = ", ".join(jobs[:MOST_NAMED])
    more = f" and {len(jobs) - MOST_NAMED} more" if len(jobs) > MOST_NAMED else ""
    return f"{len(jobs)} job{'s' if len(jobs) > 1 else ''} (id {named}{more})"


def list_jobs(policy: str, record: Record, *, workload: Workload) -> list[dict[str, Any]]:
    """Describe each job of a run as a row, dropped jobs last."""
    traced = {each.job.id: each for each in workload.jobs}
    rows = [_describe_job(policy, job, traced=traced[job.job]) for job in record.jobs]
    empty = dict.fromkeys(rows[0] if rows else ())
    rows += [
        {**empty, "policy": policy, "job_id": job, "outcome": "dropped"} for job in record.dropped
    ]
    return rows


def _describe_job(policy: str, job: JobRecord, *, traced: TracedJob) -> dict[str, Any]:
    done = job.completed_at is not None
    return {
        "policy": policy,
        "job_id": job.job,
        "outcome": "completed" if done else "unfinished",
        "requested_gpus": job.requested,
        "allowed_gpus": " ".join(map(str, traced.job.gpus.options)),
        "speeds_of": traced.curve,
        "drawn_by_lot": "yes" if traced.is_drawn else "no",
        "submitted_s": job.submitted_at,
        "started_s": job.started_at,
        "completed_s": job.completed_at,
        "jct_s": job.jct if done else None,
        "isolated_s": job.isolated_s,
        "slowdown": job.jct / job.isolated_s if done and job.isolated_s > 0.0 else None,
        "gpu_seconds": job.gpu_seconds,
        "iterations": job.iterations,
        "redone_iterations": job.redone,
        "lost_work_s": job.lost_work_s,
        "lost_s": job.lost_s,
        "reshapes": job.reshapes,
        "stops": job.stops,
    }


def write_records(path: Path, outcomes: Sequence[Outcome]) -> None:
    """Write all that happened, to one file for each policy."""
    # Not at the top, because most simulations are not recorded.
    from dljob.client.exporting import write_file  # noqa: PLC0415

    for outcome in outcomes:
        assert outcome.happenings is not None
        name = outcome.score.policy.translate(_NO_SEPARATORS)
        own = path if len(outcomes) == 1 else path.with_stem(f"{path.stem}-{name}")
        write_file(own, outcome.happenings)


_NO_SEPARATORS = str.maketrans(dict.fromkeys("/:=,", "-"))
"""The options of a policy, or the file that it is from, are no folders."""


def draw(folder: Path, outcomes: Sequence[Outcome], *, options: Options) -> None:
    """Draw the runs, each picture named for the trace and what it shows."""
    # Not before, because it takes longer to load than a small trace to play.
    plots = load(PAGES, "plots", add_on="dljob-lab")
    runs = [plots.Run(outcome.score.policy, outcome.record) for outcome in outcomes]
    trace = outcomes[0].score.trace
    drawn = plots.draw_runs(runs, look=LOOKS[options.look])
    figures = {f"{trace}-{name}": figure for name, figure in drawn.items()}
    plots.write_pictures(folder, figures, forms=options.formats)
