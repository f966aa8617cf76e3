"""
The frames of ``dljob top``: one picture of all GPUs and jobs, as lines of text.

Pure: facts and the size of the window go in, lines come out. The last line counts or names what does not
fit, so that nothing is lost silently.
"""

import time
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from rich.text import Text

from dljob.cli.output import texts
from dljob.client.backend import Json
from dljob.client.jobviews import JobView, eta_of, progress_of
from dljob.client.turns import show_turn
from dljob.control.reporting import formatting

BAR = 12
LEAST_REASON = 16
"""The least width of the reasons."""

_RANKS = {
    "Running": 0,
    "Adjusting": 0,
    "Initialized": 0,
    "Cancelling": 0,
    "Submitted": 1,
    "Queued": 1,
    "Suspended": 2,
    "Failed": 3,
    "Completed": 3,
}


SYMBOLS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
COLOURS = ("green", "cyan", "magenta", "yellow", "blue", "red", "bright_green", "bright_cyan")
STRANGER = "?"

FREE, TAKEN_OUT = "·", "×"


@dataclass
class Signs:
    """The letter and colour of each job, which the job keeps as long as it exists."""

    known: dict[str, str] = field(default_factory=dict)

    def learn(self, jobs: Iterable[JobView]) -> None:
        """Give letters to new jobs; letters of ended jobs are reused first."""
        living = {job.name for job in jobs if not job.is_final}
        for name in [name for name in self.known if name not in living]:
            del self.known[name]
        for job in jobs:
            if job.name in living and job.name not in self.known:
                free = (s for s in SYMBOLS if s not in self.known.values())
                self.known[job.name] = next(free, STRANGER)

    def show(self, job: str | None) -> Text:
        symbol = self.known.get(job or "", STRANGER)
        place = SYMBOLS.find(symbol)
        return Text(symbol, style=f"bold {COLOURS[place % len(COLOURS)]}" if place >= 0 else "")


def draw_map(nodes: Sequence[Json], signs: Signs, *, width: int) -> list[Text]:
    names = max((len(node["name"]) for node in nodes), default=0)
    cells = []
    for node in nodes:
        cell = Text(f"{node['name']:<{names}} ")
        for gpu in node["gpus"]:
            cell.append(" ")
            cell.append_text(_draw_gpu(gpu, signs))
        cells.append(cell)
    widest = max((cell.cell_len for cell in cells), default=0)
    each_line = max(1, (width + 3) // (widest + 3))
    lines = []
    for start in range(0, len(cells), each_line):
        line = Text()
        for cell in cells[start : start + each_line]:
            line.append_text(cell)
            line.append(" " * (widest - cell.cell_len + 3))
        line.rstrip()
        lines.extend(wrap(line, width))
    return lines


def _draw_gpu(gpu: Json, signs: Signs) -> Text:
    if gpu["state"] == "free":
        return Text(FREE, style="dim")
    if gpu["state"] == "unavailable":
        return Text(TAKEN_OUT, style="red")
    sign = signs.show(gpu.get("job"))
    if gpu["state"] == "in use":
        sign.stylize("reverse")
    return sign


def wrap(line: Text, width: int) -> list[Text]:
    """Break a row of GPUs that is wider than the window."""
    pieces = []
    while line.cell_len > width:
        cut = line.plain.rfind(" ", 1, width)
        cut = cut if cut > 0 else width
        first, line = line.divide([cut])
        pieces.append(first)
    return [*pieces, line]


class Window(NamedTuple):
    """The size of the window, and the scroll position."""

    width: int
    height: int | None
    """``None``: unlimited."""
    skipped: int = 0
    """The number of jobs that the user has scrolled past."""


@dataclass(frozen=True)
class Facts:
    """The facts of one moment."""

    about: Json
    jobs: Sequence[JobView]
    nodes: Sequence[Json]
    at: float
    problem: str = ""
    """The reason why the facts are old."""


class Frame:
    def __init__(self, facts: Facts, signs: Signs, *, window: Window) -> None:
        self._facts = facts
        self._signs = signs
        self._window = window
        jobs = enumerate(facts.jobs)
        ranked = sorted(jobs, key=lambda each: (_RANKS.get(each[1].phase, 1), each[0]))
        self._jobs = [job for _, job in ranked]

    @property
    def most_skipped(self) -> int:
        """The largest scroll position."""
        return max(0, len(self._jobs) - self._room(len(self._head())))

    def lines(self) -> list[Text]:
        head = self._head()
        room = self._room(len(head))
        skipped = min(self._window.skipped, self.most_skipped)
        shown = self._jobs[skipped : skipped + room]
        header, rows, hidden = self._table(shown)
        width = self._window.width
        is_cut = any(row.cell_len > width for row in rows)
        lines = [*head, header, *rows]
        for line in lines:
            line.truncate(width, overflow="ellipsis")
        return [*lines, *self._foot(_Left(skipped, len(shown), tuple(hidden), is_cut))]

    def _room(self, head: int) -> int:
        """Return the number of jobs that fit below the head, the header and the foot."""
        if self._window.height is None:
            return len(self._jobs)
        return max(1, self._window.height - head - 2)

    # --- the head

    def _head(self) -> list[Text]:
        lines = self._title()
        if self._facts.problem:
            lines.append(Text(self._facts.problem, style="bold red"))
        nodes = draw_map(self._facts.nodes, self._signs, width=self._window.width)
        if self._window.height is not None:
            # Half of the window is for the jobs.
            most = max(1, self._window.height // 2 - len(lines) - 1)
            if len(nodes) > most:
                left_out = len(nodes) - most + 1
                nodes = [
                    *nodes[: most - 1],
                    Text(f"… {left_out} more rows of GPUs: dljob gpu list"),
                ]
        return [*lines, *nodes, Text("")]

    def _title(self) -> list[Text]:
        """Sum up all GPUs and jobs; in a narrow window on several lines."""
        about = self._facts.about
        states = Counter(gpu["state"] for node in self._facts.nodes for gpu in node["gpus"])
        phases = Counter(job.phase.lower() for job in self._jobs)
        how = [about[name] for name in ("policy", "mechanism") if about.get(name)]
        parts = [
            Text("dljob top", style="bold"),
            *([Text(", ".join(how))] if how else ()),
            Text(_counted(states, "GPU")),
            Text(_counted(phases, "job")),
            Text(time.strftime("%H:%M:%S", time.localtime(self._facts.at)), style="dim"),
        ]
        if sum(part.cell_len + 2 for part in parts) - 2 > self._window.width:
            # The time would be alone on the last line.
            clock = parts.pop()
            parts.insert(-2, clock)
        lines = [parts[0]]
        for part in parts[1:]:
            if lines[-1].cell_len + 2 + part.cell_len <= self._window.width:
                lines[-1] = Text("  ").join((lines[-1], part))
            else:
                lines.append(part)
        return lines

    # --- the jobs

    def _table(self, jobs: Sequence[JobView]) -> tuple[Text, list[Text], list[str]]:
        """Draw the jobs; the last result names the hidden columns."""
        titles = ["", "NAME", "PHASE", "GPUS", "PROGRESS", "SPEED", "ETA", "RESHAPES", "AGE"]
        rows = [self._row(job) for job in jobs]
        hidden: list[str] = []
        # The least important columns are hidden first.
        for title in ("AGE", "RESHAPES", "SPEED", "ETA", "PHASE"):
            columns = zip(titles, *rows, strict=True)
            width = sum(max(map(_cells, column)) + 2 for column in columns)
            if width + LEAST_REASON <= self._window.width:
                break
            place = titles.index(title)
            del titles[place]
            rows = [row[:place] + row[place + 1 :] for row in rows]
            hidden.append(title)
        widths = [max(map(_cells, column)) for column in zip(titles, *rows, strict=True)]
        header = _join([Text(title) for title in (*titles, "REASON")], (*widths, 6))
        header.stylize("bold")
        reasons = [Text(self._reason(job), style="dim") for job in jobs]
        lines = [
            _join((*row, reason), (*widths, 0)) for row, reason in zip(rows, reasons, strict=True)
        ]
        return header, lines, hidden

    def _reason(self, job: JobView) -> str:
        if job.ahead is None:
            return job.message
        return f"starts {show_turn(job, self._facts.at)}; {job.message}"

    def _row(self, job: JobView) -> list[Text]:
        sign = self._signs.show(job.name) if not job.is_final else Text(" ")
        return [
            sign,
            Text(job.name),
            Text(job.phase, style=texts.COLOURS.get(job.phase, "")),
            Text(str(job.gpus)),
            _bar(job),
            Text(texts.speed(job.speed)),
            Text(eta_of(job)),
            Text(str(job.reshapes)),
            Text(texts.age(job.submitted_at, self._facts.at)),
        ]

    def _foot(self, left: "_Left") -> list[Text]:
        """Name what is not shown, on one line; without a window on several."""
        told = []
        below = len(self._jobs) - left.above - left.shown
        if left.above:
            told.append(f"{left.above} more above")
        if below:
            told.append(f"{below} more below")
        if left.hidden:
            told.append(f"no room for {', '.join(left.hidden)}")
        is_window = self._window.height is not None
        if left.is_cut:
            told.append("reasons are cut: dljob why NAME")
        if (left.hidden or left.is_cut) and not is_window:
            told.append("-o wide prints all")
        if is_window:
            told.append("arrows scroll, q quits")
        line = Text("; ".join(told), style="dim")
        if not told:
            return []
        if not is_window:
            return list(wrap(line, self._window.width))
        line.truncate(self._window.width, overflow="ellipsis")
        return [line]


class _Left(NamedTuple):
    """The hidden jobs and columns."""

    above: int
    shown: int
    hidden: tuple[str, ...]
    """Columns."""
    is_cut: bool
    """True if the reason of some job is cut."""


def _counted(counts: Counter[str], thing: str) -> str:
    total = sum(counts.values())
    named = ", ".join(f"{count} {name}" for name, count in counts.items())
    return f"{total} {thing}{'' if total == 1 else 's'}" + (f": {named}" if named else "")


def _bar(job: JobView) -> Text:
    told = progress_of(job)
    # The last report comes before the end, so a Completed job may report 99 %.
    fraction = 1.0 if formatting.did_all(job.status) else job.fraction
    if fraction is None or told == formatting.NOTHING:
        return Text(told)
    full = int(fraction * BAR)
    bar = Text("█" * full, style=texts.COLOURS.get(job.phase, ""))
    bar.append("░" * (BAR - full), style="dim")
    return bar.append(f" {told}", style="default")


def _cells(cell: Text | str) -> int:
    return cell.cell_len if isinstance(cell, Text) else len(cell)


def _join(cells: Sequence[Text], widths: Sequence[int]) -> Text:
    line = Text()
    for cell, width in zip(cells, widths, strict=True):
        line.append_text(cell)
        line.append(" " * max(0, width - cell.cell_len) + "  ")
    line.rstrip()
    return line
