"""The pictures of a demonstration: the paper's Figures 3 and 4, drawn from its event log."""

from collections.abc import Mapping, Sequence

from matplotlib.figure import Figure

from dlpapers.demonstrating.closing import Result
from dlpapers.reproducing.sidecar import pictures as sidecar_pictures
from dlpapers.reproducing.sidecar.case import PAPER, Sums, sum_up
from dlpapers.reproducing.sidecar.pictures import CASE_JOBS, LABELS, Panel


def draw(results: Sequence[Result], *, compared: bool) -> Mapping[str, Figure]:
    """Draw them, the paper's own figures beside those of the run where they can be compared."""
    panels = [
        Panel(
            LABELS[result.approach],
            {CASE_JOBS[job]: curve for job, curve in result.curves.items()},
            sidecar_pictures.paper_marks(result.approach) if compared else (),
        )
        for result in results
    ]
    groups = {"this run": [Sums(result.makespan_s, result.avg_jct_s) for result in results]}
    if compared:
        groups = {"paper": [sum_up(PAPER[result.approach]) for result in results], **groups}
    until = 1.04 * max(result.makespan_s for result in results)
    speed = "training speed (iterations per second)"
    return {
        "demo-fig03-training-speed": sidecar_pictures.draw_speeds(panels, until=until, up=speed),
        "demo-fig04-times": sidecar_pictures.draw_sums(
            [LABELS[result.approach] for result in results], groups
        ),
    }
