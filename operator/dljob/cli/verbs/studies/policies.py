"""``dljob policies``: which policies there are, where they come from, and what they need to know."""

import inspect
from dataclasses import asdict, dataclass
from string import ascii_lowercase
from typing import Any

import click

from dljob.cli.output import printing
from dljob.cli.output.forms import to_json
from dljob.core.assuming import Assuming, Knowledge
from dljob.core.options import rules_of
from dljob.sim import policies


@dataclass(frozen=True, slots=True)
class Entry:
    """The printed facts about a policy."""

    name: str
    does: str
    paper: str
    needs: str
    breaks: tuple[str, ...]
    """The laws of plans that it breaks on purpose."""
    options: dict[str, Any]
    """Its options, with the defaults."""
    allowed: dict[str, str]
    """The allowed values of each option."""
    without: dict[str, str]
    """For each piece of knowledge about a job that it uses: its behaviour without that piece."""


@click.command("policies")
@click.option(
    "-o",
    "--output",
    type=click.Choice(["table", printing.WIDE, "json"]),
    default="table",
    show_default=True,
    help="How the list is printed; wide adds what each policy does without knowledge about a job.",
)
def command(output: str) -> None:
    """List the policies: name, what it does, which paper it is from, what it needs to know."""
    entries = [describe(name) for name in policies.NAMES]
    if output == "json":
        click.echo(to_json([asdict(entry) for entry in entries]), nl=False)
    else:
        titles = ("policy", "what it does", "from", "needs to know", "options")
        rows = []
        for entry in entries:
            given = ", ".join(f"{key}={_write(value)}" for key, value in entry.options.items())
            breaks = f" (breaks on purpose: {', '.join(entry.breaks)})" if entry.breaks else ""
            rows.append((entry.name, entry.does + breaks, entry.paper, entry.needs, given))
        click.echo(printing.tabulate(titles, rows, words=5, shares=(None, 4, 2, 2, 2)), nl=False)
        refused = ", ".join(entry.name for entry in entries if entry.breaks)
        note = f" but {refused}, which breaks laws" if refused else ""
        click.echo(f"Controllers offer all of them{note}.")
        if output == printing.WIDE:
            click.echo(_tabulate_fallbacks(entries), nl=False)


def describe(name: str) -> Entry:
    """Describe a policy in the words of its file."""
    policy = policies.make(name)
    assumes = policy.assumes if isinstance(policy, Assuming) else {}
    summary = (inspect.getdoc(type(policy)) or "").partition("\n\n")[0]
    return Entry(
        name=name,
        does=" ".join(summary.split()),
        paper=policy.paper,
        needs=policy.needs,
        breaks=tuple(sorted(law.value for law in policy.breaks)),
        options=policies.options_of(name),
        allowed={key: rule.allowed for key, rule in rules_of(policy).items()},
        without={piece.name.lower(): does for piece, does in assumes.items()},
    )


def _tabulate_fallbacks(entries: list[Entry]) -> str:
    """Write the fallbacks as letters, because many policies share the few sentences below."""
    pieces = [piece.name.lower() for piece in Knowledge]
    used = dict.fromkeys(each for entry in entries for each in entry.without.values())
    letters = dict(zip(used, ascii_lowercase, strict=False))
    rows = [
        (entry.name, *(letters.get(entry.without.get(piece, ""), "-") for piece in pieces))
        for entry in entries
    ]
    table = printing.tabulate(("policy", *pieces), rows, words=1 + len(pieces), wide=True)
    lines = [
        "",
        "Policies without a piece of knowledge about a job (-: the policy does not use the piece):",
        table,
        *(f"  {piece.name.lower()}: {piece.value}" for piece in Knowledge),
        "",
        *(f"  {letter}: {does}" for does, letter in letters.items()),
    ]
    return "".join(f"{line}\n" for line in lines)


def _write(value: Any) -> str:
    """A value as it is written behind the name of a policy."""
    if isinstance(value, tuple):
        return ",".join(f"{each:g}" for each in value)
    return str(value).lower() if isinstance(value, bool) else str(value)
