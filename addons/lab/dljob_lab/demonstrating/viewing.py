"""
The view of a demonstration: a moving picture on a terminal, else lines.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from dljob.control.situation.ports import Entry, PodKey
from dljob.core.model import JobId, Phase
from dljob_lab.demonstrating.journal import Journal, Line
from dljob_lab.demonstrating.stage import Stage
from dljob_wire.messages import Progress, State

COLOURS = ("blue", "dark_orange3", "green", "magenta")
BAR_WIDTH = 26
LEAST_BAR_WIDTH = 6
BESIDE_BAR = 50
"""The columns of the picture for its frame, and for the text next to the bar of a job."""
REFRESH_PER_S = 4
WIDTH = 100


class Picture:
    """All approaches, as they are at the moment at which it is looked at."""

    def __init__(self, stages: Sequence[Stage]) -> None:
        self._stages = stages

    @property
    def second(self) -> float:
        """Return how far it is, in what is shown."""
        return max(stage.shown(time.time()) for stage in self._stages)

    @property
    def height(self) -> int:
        """Return how many lines it has: of each approach its frame, its GPUs and its jobs."""
        return sum(3 + len(stage.script.jobs) for stage in self._stages)

    def __rich_console__(self, _console: Console, options: ConsoleOptions) -> RenderResult:
        """As rich asks for it, a few times a second, for a terminal that is so wide by now."""
        width = min(WIDTH, options.max_width)
        yield Group(*(_draw_stage(stage, width) for stage in self._stages))


def is_worth_drawing(console: Console, height: int, *, environment: Mapping[str, str]) -> bool:
    """
    Return whether the output is a terminal that can show a moving picture of this height.

    A log of CI may claim to be a terminal, and is read afterwards.
    """
    is_animated = console.is_terminal and not console.is_dumb_terminal
    return is_animated and not environment.get("CI") and console.height > height


def _draw_stage(stage: Stage, width: int) -> Panel:
    bar = max(LEAST_BAR_WIDTH, min(BAR_WIDTH, width - BESIDE_BAR))
    approach = stage.approach
    colours = dict(zip(stage.script.jobs, COLOURS, strict=False))
    title = (
        f"[bold]{approach.name}[/] · {approach.policy.name}, {approach.mechanism.value}"
        f" · second {stage.shown(time.time()):,.0f}"
    )
    jobs = Table.grid(padding=(0, 2))
    for least in (0, bar, 5, 6, 0):
        # So that columns stay where they are.
        jobs.add_column(min_width=least, no_wrap=True)
    for job in stage.script.jobs:
        jobs.add_row(*_draw_job(stage, job, colour=colours[job], bar=bar))
    return Panel(
        Group(_draw_gpus(stage, colours), jobs),
        title=title,
        title_align="left",
        border_style="dim",
        width=width,
    )


def _draw_gpus(stage: Stage, colours: dict[JobId, str]) -> Text:
    """Each GPU with the name and in the colour of its job; pale where it is only decided for that job."""
    held, decided = _owners(stage)
    text = Text("GPUs ", no_wrap=True)
    widest = max(map(len, colours))
    for gpu in stage.place.node.gpus:
        owner, soon = held.get(gpu.index), decided.get(gpu.index)
        if owner is not None:
            cell, style = f"{gpu.index} {owner}", f"bold white on {colours[owner]}"
        elif soon is not None:
            cell, style = f"{gpu.index} …{soon}", f"{colours[soon]} reverse dim"
        else:
            cell, style = f"{gpu.index} free", "dim"
        text.append(f" {cell:<{widest + 3}} ", style=style)
        text.append(" ")
    return text


def _owners(stage: Stage) -> tuple[dict[int, JobId], dict[int, JobId]]:
    held: dict[int, JobId] = {}
    decided: dict[int, JobId] = {}
    numbers = {gpu.uuid: gpu.index for gpu in stage.place.node.gpus if gpu.uuid}
    for job, entry in stage.entries.items():
        if entry.status.placement is not None:
            decided |= {ref.number: job for ref in entry.status.placement.refs()}
        for state in _states(stage, entry):
            names = (numbers.get(name, name) for name in state.held)
            held |= {int(name): job for name in names}
    return held, decided


def _states(stage: Stage, entry: Entry) -> Iterator[State]:
    for booking in entry.status.pods:
        state = stage.running.sidecars.contact(PodKey(entry.job.id, booking.node)).state
        if state is not None:
            yield state


def _draw_job(stage: Stage, job: JobId, *, colour: str, bar: int) -> tuple[RenderableType, ...]:
    entry = stage.entries.get(job)
    if entry is None:
        return Text(job, style="dim"), ProgressBar(width=bar, completed=0), "", "", ""
    status = entry.status
    progress = _progress_of(stage, entry)
    total = entry.job.training.iterations or 1
    done = total if status.phase is Phase.COMPLETED else max(status.iteration, progress.iteration)
    gpus = status.placement.gpus if status.placement is not None else 0
    speed = progress.iterations_per_second / stage.script.factor
    trains = f", {speed:.2f} it/s" if speed > 0 and status.phase is Phase.RUNNING else ""
    is_up = any(not state.leaving for state in _states(stage, entry))
    return (
        Text(job, style=f"bold {colour}"),
        ProgressBar(total=total, completed=done, width=bar, complete_style=colour),
        f"{100 * done / total:3.0f} %",
        Text(f"{gpus} GPUs" if gpus else "–", justify="right"),
        Text(describe(status.phase, steps=speed > 0, is_up=is_up) + trains, style="italic"),
    )


def _progress_of(stage: Stage, entry: Entry) -> Progress:
    """Return the progress that its SideCar reports, where it has one."""
    return next((state.progress for state in _states(stage, entry)), Progress())


def describe(phase: Phase, *, steps: bool, is_up: bool) -> str:
    """Describe what a job does now: whether it takes steps, and whether its pod is up."""
    if phase is Phase.RUNNING:
        return "trains" if steps else "its framework starts"
    if phase is Phase.INITIALIZED:
        return "its pod is up" if is_up else "its pod starts"
    return _WORDS[phase]


_WORDS = {
    Phase.SUBMITTED: "was submitted",
    Phase.QUEUED: "waits for GPUs",
    Phase.ADJUSTING: "its GPUs are changed",
    Phase.COMPLETED: "is done",
    Phase.FAILED: "failed",
    Phase.SUSPENDED: "is suspended",
}


# --- lines --------------------------------------------------------------------------------


class Lines:
    """Prints the events, a line each, in the order in which it does."""

    def __init__(
        self, journal: Journal, stages: Iterable[Stage], *, say: Callable[[str], None]
    ) -> None:
        self._journal = journal
        self._stages = {stage.name: stage for stage in stages}
        self._say = say
        self._told = 0
        self._phases: dict[tuple[str, str], str] = {}

    def print(self) -> None:
        """Print the new lines."""
        lines, self._told = self._journal.lines[self._told :], len(self._journal.lines)
        for line in lines:
            text = self._describe(line)
            if text:
                at = self._stages[line["approach"]].shown(line["at"])
                self._say(f"{at:6.0f} s  {line['approach']:<12} {line['job']:<6} {text}")

    def _describe(self, line: Line) -> str:
        if line["what"] == "submitted":
            return "is submitted"
        if line["what"] == "decided":
            return str(line["message"])
        name = line["approach"], line["job"]
        before, self._phases[name] = self._phases.get(name, ""), line["phase"]
        if line["phase"] == before:
            return ""
        if line["phase"] == "Running":
            return f"runs on {counted(len(line['gpus']))}"
        return "has done all its iterations" if line["phase"] == "Exited" else ""


def live(picture: Picture, console: Console) -> Live:
    """Show the picture for as long as this context is open."""
    return Live(
        picture,
        console=console,
        refresh_per_second=REFRESH_PER_S,
        transient=True,
        # A log line in between would tear the picture apart.
        redirect_stdout=False,
        redirect_stderr=False,
    )


def counted(gpus: int) -> str:
    """Write a number of GPUs with the word."""
    return f"{gpus} GPU{'' if gpus == 1 else 's'}"
