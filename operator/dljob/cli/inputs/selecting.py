"""
Which jobs a verb means: those that are named, those with certain labels, or all.

The verbs that change or await several jobs use it. A user who types names means these jobs. Jobs that labels
or ``--all`` select are looked up first, and a verb that changes them asks before it does.
"""

import sys
from collections.abc import Callable
from functools import wraps
from typing import Any, NamedTuple

import click

from dljob.cli.inputs.options import name_argument
from dljob.cli.output.messages import say
from dljob.client.backend import Backend
from dljob.client.jobviews import JobView

MOST_NAMED = 10
"""The number of jobs that a question names before it only counts."""


class Selection(NamedTuple):
    """The selection of jobs on the command line."""

    names: tuple[str, ...]
    selector: str = ""
    is_all: bool = False
    is_sure: bool = False
    """True with ``--yes``."""

    def find(
        self,
        backend: Backend,
        verb: str,
        *,
        applies: Callable[[JobView], bool] = lambda _: True,
        warning: str = "",
    ) -> tuple[str, ...]:
        """
        Name the jobs that are meant; of labels and ``--all``, those that the verb applies to.

        The ``warning`` says, before the question, what else the answer yes does.
        Raises :class:`click.Abort` if the user does not want that.
        """
        given = bool(self.names) + bool(self.selector) + self.is_all
        if given > 1:
            raise click.UsageError("names, --selector and --all exclude each other; give one")
        if not given:
            raise click.UsageError("no job is named; give names, --selector LABELS or --all")
        if self.names:
            return self.names
        listed = backend.list_jobs(self.selector).items
        jobs = [JobView.of(item, backend.home) for item in listed]
        chosen = tuple(job.name for job in jobs if not job.owner and applies(job))
        if not chosen:
            where = "with these labels " if self.selector else ""
            say(f"There is no job {where}to {verb}.")
        elif not self.is_sure:
            _ask(verb, chosen, warning)
        return chosen


def _ask(verb: str, names: tuple[str, ...], warning: str) -> None:
    shown = ", ".join(names[:MOST_NAMED])
    others = len(names) - MOST_NAMED
    more = f" and {others} others" if others > 0 else ""
    count = f"{len(names)} jobs" if len(names) > 1 else "1 job"
    if not sys.stdin.isatty():
        raise click.UsageError(
            f"this would {verb} {count} ({shown}{more}), and standard input is not a terminal;"
            " confirm it with --yes"
        )
    if warning:
        say(warning)
    if not click.confirm(f"{verb.capitalize()} {count} ({shown}{more})?", err=True):
        say("Nothing is changed.")
        raise click.exceptions.Exit(1)


def with_selection(*, asks: bool = True) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Give a verb names, ``--selector`` and ``--all``; where it ``asks``, also ``--yes``."""
    options = [
        name_argument(several=True, required=False),
        click.option(
            *("-l", "--selector"),
            default="",
            metavar="LABELS",
            help="Instead of names: the jobs with these labels, such as team=vision,!draft.",
        ),
        click.option("--all", "is_all", is_flag=True, help="Instead of names: all jobs."),
    ]
    if asks:
        options.append(
            click.option(
                *("-y", "--yes", "is_sure"),
                is_flag=True,
                help="Do not ask for confirmation with labels or --all.",
            )
        )

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(function)
        def chosen(*args: Any, **given: Any) -> Any:
            said = {name: given.pop(name) for name in Selection._fields if name in given}
            return function(*args, selection=Selection(**{"is_sure": True, **said}), **given)

        decorated: Callable[..., Any] = chosen
        for option in reversed(options):
            decorated = option(decorated)
        return decorated

    return decorate
