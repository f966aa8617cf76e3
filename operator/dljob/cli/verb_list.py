"""
Which verbs there are and in which module each is, so that only the one that is typed is loaded.

Add-ons bring verbs by entry points (:mod:`dljob.installed`).

``dljob get`` is asked for many times a day and by programs; the simulator takes longer to load
than the whole of its answer.
"""

from importlib import import_module
from typing import Any, NamedTuple

import click

from dljob import installed


class Verb(NamedTuple):
    """A verb of the command line."""

    module: str
    """A module of :mod:`dljob.cli`; the verb is its ``command``, or the name after a colon."""
    help: str
    """The text in the list of verbs."""


class LazyGroup(click.Group):
    """A group whose commands are loaded when they are asked for."""

    def __init__(self, *args: Any, verbs: dict[str, dict[str, Verb]], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._verbs = {name: verb for verbs in verbs.values() for name, verb in verbs.items()}

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - as click calls it
        return sorted({*self._verbs, *installed.find_points(installed.COMMANDS)})

    def get_command(
        self,
        ctx: click.Context,  # noqa: ARG002 - as click calls it
        cmd_name: str,
    ) -> click.Command | None:
        verb = self._verbs.get(cmd_name)
        if verb is None:
            points = installed.find_points(installed.COMMANDS)
            command = points[cmd_name].load() if cmd_name in points else None
            assert command is None or isinstance(command, click.Command)
            return command
        module, _, attribute = verb.module.partition(":")
        command = getattr(import_module(f"dljob.cli.{module}"), attribute or "command")
        assert isinstance(command, click.Command)
        return command

    def format_commands(
        self,
        ctx: click.Context,  # noqa: ARG002 - as click calls it
        formatter: click.HelpFormatter,
    ) -> None:
        """List the verbs without loading them; those of other people's add-ons say themselves what they do."""
        found = installed.find_points(installed.COMMANDS)
        for title, verbs in list_sections().items():
            with formatter.section(title):
                formatter.write_dl(list(verbs.items()))
        others = {name: found[name].load() for name in found if name not in installed.VERBS}
        if others:
            with formatter.section("Other add-ons"):
                formatter.write_dl([(n, c.get_short_help_str(limit=70)) for n, c in others.items()])

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Suggest a verb for an unknown one."""
        if args[0] in self._verbs or args[0].startswith("-"):
            return super().resolve_command(ctx, args)
        known = self.list_commands(ctx)
        if args[0] not in known:
            if args[0] in installed.VERBS:
                raise installed.miss_add_on(installed.VERBS[args[0]].add_on)
            from difflib import get_close_matches  # noqa: PLC0415 - hardly ever needed

            near = get_close_matches(args[0], known, n=1)
            guess = f" Did you mean {near[0]!r}?" if near else " See dljob --help."
            raise click.UsageError(f"No such command {args[0]!r}.{guess}", ctx)
        return super().resolve_command(ctx, args)


VERBS = {
    "Jobs": {
        "run": Verb("verbs.jobs.run", "Run a training command as a job, without a file."),
        "submit": Verb("verbs.jobs.run:submit", "Submit jobs, or preview the decision about them."),
        "apply": Verb("verbs.jobs.apply", "Submit jobs, and change those that exist already."),
        "get": Verb("verbs.watching.get", "List jobs, once or as they change."),
        "describe": Verb("verbs.watching.describe", "Show everything about a job."),
        "why": Verb("verbs.watching.why", "Explain what a job does now, or why it waits."),
        "what-if": Verb(
            "verbs.watching.what_if", "Show when jobs would end if something were different."
        ),
        "history": Verb(
            "verbs.watching.history", "List the decisions about a job, with cause and cost."
        ),
        "record": Verb(
            "verbs.watching.report:record_command",
            "Write the record of events to a file, or for Perfetto.",
        ),
        "report": Verb(
            "verbs.watching.report", "Sum up where GPU time went, by namespace, user, job or type."
        ),
        "logs": Verb("verbs.watching.logs", "Print the output of a job's training."),
        "exec": Verb("verbs.jobs.execute", "Run a command on the GPUs that a job has."),
        "wait": Verb(
            "verbs.watching.wait", "Wait until jobs are in a phase, have a condition, or are gone."
        ),
        "set": Verb("verbs.jobs.steer:assign", "Change the GPUs and the priority of jobs."),
        "edit": Verb("verbs.jobs.edit", "Change a job in your editor."),
        "suspend": Verb(
            "verbs.jobs.steer:suspend", "Take all GPUs from jobs until they are resumed."
        ),
        "resume": Verb("verbs.jobs.steer:resume", "Put suspended jobs into the queue again."),
        "cancel": Verb("verbs.jobs.steer:cancel", "End jobs and forget them."),
    },
    "GPUs and the controller": {
        "top": Verb("verbs.watching.top", "Watch GPUs and jobs, live."),
        "gpu": Verb("verbs.server.gpu", "List GPUs, cordon and uncordon them."),
        "hold": Verb("verbs.server.hold", "Let nothing be decided about jobs, or release them."),
        "up": Verb("verbs.server.up", "Run jobs on this machine."),
        "down": Verb("verbs.server.down", "End the dljob up of this machine; jobs go on training."),
        "config": Verb(
            "verbs.server.config", "Show the settings of the controller and their sources."
        ),
        "profiles": Verb(
            "verbs.server.profiles", "Show, import and measure the profiles of types of jobs."
        ),
    },
    "Kubernetes": {
        "render": Verb("verbs.jobs.render", "Print the pods that the operator makes of job files."),
    },
    "Simulation": {
        "simulate": Verb("verbs.studies.simulate", "Play a trace under one or more policies."),
        "policies": Verb("verbs.studies.policies", "List the policies."),
    },
    "More": {
        "completion": Verb("completion", "Print the completion script for your shell."),
    },
}


def list_sections() -> dict[str, dict[str, str]]:
    """List the help of every verb by section, those of the add-ons that are made with the product included."""
    sections = {
        title: {name: verb.help for name, verb in verbs.items()} for title, verbs in VERBS.items()
    }
    found = installed.find_points(installed.COMMANDS)
    for name, added in installed.VERBS.items():
        note = "" if name in found else f" Needs the add-on {added.add_on}."
        sections[added.section][name] = added.help + note
    return sections
