"""
``dljob wait``: until jobs are in a phase, have a condition, or are gone.

Programs call it, so the exit status says how it ended: 0 when all jobs are as awaited, 1 when one of them
can no longer come to be, 124 when the time is over (as ``timeout`` has it).
"""

import time
from collections.abc import Sequence

import click
from click.shell_completion import CompletionItem

from dljob.cli.inputs.options import with_backend
from dljob.cli.inputs.selecting import Selection, with_selection
from dljob.cli.inputs.spans import read_span_option
from dljob.cli.output.messages import complain
from dljob.client.backend import Backend
from dljob.client.goals import DELETED, FINISHED, LOOK_S, Goal, Verdict, read_goal, read_job
from dljob.client.jobviews import (
    PHASES,
    JobView,
)

TIMED_OUT = 124


def _complete_goal(
    ctx: click.Context,  # noqa: ARG001 - as click calls it
    param: click.Parameter,  # noqa: ARG001 - as click calls it
    incomplete: str,
) -> list[CompletionItem]:
    words = (FINISHED, DELETED, *PHASES, "condition=")
    return [CompletionItem(word) for word in words if word.lower().startswith(incomplete.lower())]


@click.command("wait")
@with_selection(asks=False)
@click.option(
    *("--for", "goal"),
    default=FINISHED,
    show_default=True,
    callback=lambda _ctx, _param, text: read_goal(text),
    shell_complete=_complete_goal,
    metavar="WHAT",
    help="A phase, such as Running; condition=NAME, such as condition=Progressing=False; finished"
    " (Completed, or Failed with exit status 1); or deleted.",
)
@click.option(
    "--timeout",
    callback=read_span_option,
    metavar="TIME",
    help="The longest wait, such as 90s or 5m; then the exit status is 124.  [default: for ever]",
)
@with_backend
def command(backend: Backend, *, selection: Selection, goal: Goal, timeout: float | None) -> int:
    """
    Wait until jobs are in a phase, have a condition, or are gone.

    The exit status is 0 when all of them are, 1 when one of them never will be (or finished as
    Failed), and 124 when the time is over.
    """
    names = selection.find(backend, "wait for")
    until = None if timeout is None else time.monotonic() + timeout
    return _wait(backend, names, goal=goal, until=until)


def _wait(backend: Backend, names: Sequence[str], *, goal: Goal, until: float | None) -> int:
    left, status = list(names), 0
    while True:
        for name in list(left):
            job = read_job(backend, name)
            verdict = goal.judge(job)
            if verdict is Verdict.NOT_YET:
                continue
            left.remove(name)
            status = max(status, _tell(name, goal, verdict, job))
        if not left:
            return status
        if until is not None and time.monotonic() >= until:
            for name in left:
                complain(f"{name} is not {goal} within the time")
            return TIMED_OUT
        pause = LOOK_S * backend.look_seconds
        rest = pause if until is None else min(pause, max(0.0, until - time.monotonic()))
        time.sleep(rest)


def _tell(name: str, goal: Goal, verdict: Verdict, job: JobView | None) -> int:
    if verdict is Verdict.HOLDS:
        click.echo(f"{name} is {job.phase if job is not None and goal.phase else goal}")
        return int(goal.phase == FINISHED and job is not None and job.phase == "Failed")
    if job is None:
        complain(f"{name}: there is no such job; dljob get lists the jobs")
    else:
        why = f" ({job.message})" if job.message else ""
        complain(f"{name} is {job.phase}{why}, and will not be {goal} any more")
    return 1
