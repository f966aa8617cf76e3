"""
The nine models of AFS's Table 4 as the reproduction plays them: the curve that stands for each, and how far it scales.

``docs/reproduction/afs.md`` shows them.
"""

from typing import Any

import click
from _measuring import print_result
from _progress import run

from dljob_lab.reproducing.afs.workload import GPU_TYPE, MODELS, Model


def describe(model: Model) -> dict[str, Any]:
    """Return the row of a model."""
    curve, useful = model.curve, model.useful
    growth = curve.speed(useful, GPU_TYPE) / curve.speed(1, GPU_TYPE)
    return {
        "model": model.name,
        "batch": model.batch_size,
        "most": model.most,
        "curve": f"{model.nearest.model}, {model.nearest.batch_size}",
        "rises_to": curve.peak(GPU_TYPE),
        "useful": useful,
        "growth": growth,
    }


@click.command(help=__doc__)
@click.option("-o", "form", type=click.Choice(["table", "json"]), default="table")
def main(*, form: str) -> None:
    print_result([describe(model) for model in MODELS], form)


if __name__ == "__main__":
    run(main)
