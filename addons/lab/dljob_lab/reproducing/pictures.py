"""
The figures of papers, drawn of our own runs: ``dljob reproduce NAME --plot DIR``.

One run of each policy is drawn, the first seed of those in the tables. The numbers in the names of the pictures are those
of the paper's figures.
"""

from collections.abc import Callable, Mapping

from matplotlib.figure import Figure

from dljob_lab.plots import Run, draw_gpus
from dljob_lab.reproducing import dragon, ones
from dljob_lab.reproducing.drawing import draw_curves, draw_distributions

Pictures = Mapping[str, Figure]


def draw_ones() -> Pictures:
    """Draw Figure 15."""
    played = ones.play_policies()
    parts = ("completion", "execution", "queuing")
    times = {
        f"{part} time": {name: getattr(each, part) for name, each in played.items()}
        for part in parts
    }
    return {"ones-15": draw_distributions(times)}


def draw_dragon() -> Pictures:
    """Draw Figure 8, and Figures 9 and 10 side by side."""
    records = {name: outcome.record for name, outcome in dragon.play_testbed().items()}
    runs = [Run(name, record) for name, record in records.items() if record is not None]
    simulated = dragon.play_intensities()
    panels = {
        f"DRAGON below {baseline}": {
            f"{part} time": [
                dragon.reduce_elapsed(found, "dragon", baseline=baseline, part=field)
                for found in simulated.values()
            ]
            for part, field in dragon.PARTS.items()
        }
        for baseline in dragon.FIGURES
    }
    curves = draw_curves(
        panels, list(simulated), across="workload intensity", up="time reduction (%)"
    )
    return {"dragon-8": draw_gpus(runs), "dragon-9-10": curves}


PICTURES: Mapping[str, Callable[[], Pictures]] = {"ones": draw_ones, "dragon": draw_dragon}
"""By the name of the reproduction."""
