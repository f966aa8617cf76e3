"""
The constants of the SideCar paper's case study as the reproduction fits them: to all fifteen times, and without each approach.

The fits without an approach leave open what only that approach shows; there the smallest value is taken.
``docs/reproduction/sidecar.md`` shows them.
"""

import click
import numpy as np
from _measuring import print_result
from _progress import run

from dljob_lab.reproducing.sidecar import fitting
from dljob_lab.reproducing.sidecar.case import PAPER


@click.command(help=__doc__)
@click.option("-o", "form", type=click.Choice(["table", "json"]), default="table")
def main(*, form: str) -> None:
    fits = {without: np.round(fitting.fit(without=without)) for without in ("", *PAPER)}
    rows = [
        {
            "constant": name.removesuffix("_s").replace("_", " "),
            **{
                f"without {without}" if without else "all": value[place]
                for without, value in fits.items()
            },
        }
        for place, name in enumerate(fitting.NAMES)
    ]
    print_result(rows, form)


if __name__ == "__main__":
    run(main)
