"""The map of all GPUs in ``dljob top``: one sign for each, with the letter and the colour of its job."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from rich.text import Text

from dljob.client.backend import Json
from dljob.client.jobviews import JobView

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
