"""
Numbers of GPUs on the command line, as ``spec.gpus`` has them: ``dljob run`` and ``dljob set``.

    --gpus 4             exactly four             options: [4]
    --gpus 1,2,4         one of these             options: [1, 2, 4]
    --gpus 1-4           any number from 1 to 4   min: 1, max: 4
    --min-gpus, --max-gpus                        the bounds alone

``--options`` is another name of ``--gpus``.
"""

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

import click

from dljob_wire.problems import listed

Fields = Mapping[str, Any]

_RANGE = re.compile(r"(\d{1,6})-(\d{1,6})")
_LIST = re.compile(r"\d{1,6}(,\d{1,6})*")


class Demand(NamedTuple):
    """The numbers of GPUs on the command line."""

    counts: Fields | None = None
    """``options``, or ``min`` and ``max``."""
    least: int | None = None
    most: int | None = None

    @property
    def is_given(self) -> bool:
        return self != Demand()

    def of_new_job(self) -> Fields:
        """Write ``spec.gpus`` of a new job; the default is one GPU."""
        self._check_usage()
        if self.counts is not None:
            return self.counts
        if self.least is None and self.most is None:
            return {"options": [1]}
        least = self.least or 1
        return {"min": least, "max": self.most or least}

    def changed(self, gpus: Fields) -> Fields:
        """Write ``spec.gpus`` of an existing job with these numbers; other fields stay."""
        self._check_usage()
        counts = self.counts if self.counts is not None else self._narrowed(gpus)
        kept = {name: value for name, value in gpus.items() if name not in COUNTS}
        changed = {**counts, **kept}
        if "options" in counts:
            allowed = counts["options"]
        else:
            allowed = range(counts["min"], counts["max"] + 1)
        if "requested" in kept and kept["requested"] not in allowed:
            del changed["requested"]
        return changed

    def _narrowed(self, gpus: Fields) -> Fields:
        """Keep the job's numbers within the bounds, or move its range."""
        if "options" not in gpus:
            bounds = {"min": gpus.get("min", 1), "max": gpus["max"]}
            said = {"min": self.least, "max": self.most}
            return bounds | {name: value for name, value in said.items() if value is not None}
        options = gpus["options"]
        least, most = self.least or 1, self.most or max(options)
        within = [count for count in options if least <= count <= most]
        if not within or most > max(options):
            raise click.UsageError(
                f"the job names its numbers of GPUs, {listed(options, 'and')}, and none of them is"
                f" from {least} to {most}; give other numbers with --gpus"
            )
        # A bound that an autoscaler has set stays.
        is_bounded = self.most is None and gpus.get("max", 0) >= min(within)
        return {"options": within} | ({"max": gpus["max"]} if is_bounded else {})

    def _check_usage(self) -> None:
        if self.counts is not None and (self.least is not None or self.most is not None):
            raise click.UsageError("--gpus and --min-gpus or --max-gpus exclude each other")


COUNTS = frozenset({"options", "min", "max"})


def read_counts(text: str) -> Fields:
    """Read numbers of GPUs; raises :class:`click.BadParameter`."""
    if found := _RANGE.fullmatch(text):
        least, most = int(found[1]), int(found[2])
        if 1 <= least <= most:
            return {"min": least, "max": most}
    elif _LIST.fullmatch(text):
        options = sorted({int(count) for count in text.split(",")})
        if options[0] >= 1:
            return {"options": options}
    raise click.BadParameter(
        f"{text!r} is not a number of GPUs; write 4, or 1,2,4 for one of these, or 1-4 for a range"
    )
