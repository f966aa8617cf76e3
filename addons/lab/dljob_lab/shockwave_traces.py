"""
How long Shockwave's jobs run, whose batch size changes over their life.

Called by :mod:`dljob.sim.jobs.scaling` for traces of Shockwave (Zheng et al., NSDI 2023). A job runs on
exactly the GPUs that it asks for, for a number of epochs. Its ``adaptation_mode`` says with which
batch size it runs each of them:

* ``static``: with the one that it was submitted with.
* ``accordion``: with that one in critical epochs and during the first 30 % of its life, and with
  the model's largest one otherwise. Transformers do not adapt.
* ``gns``: it doubles at epochs that were found from the gradient noise scale, by model, first
  batch size and number of GPUs.

An epoch takes (samples / batch size) / (steps per second at that batch size). The speeds are those
measured by the authors on V100; ``duration_s``, which is about the first batch size alone, says how
much slower or faster the GPUs were that a trace was made for (traces of 460 and 900 jobs: others
than those of the 120 jobs). The tables in ``profiles/shockwave`` hold all of this.

**What is exact and what is not.** The sum over the epochs is how long the job runs alone, and as
it is rigid in GPUs, that is how much service it needs, however often it is interrupted: completion
times are exact. Its speed is spread evenly over its life, so a job that is stopped halfway has done
half of its service, where really it has done fewer than half of its epochs. Policies know the
service that is left. Policies of the paper's evaluation, except Shockwave itself, believe that the
present batch size stays, so they overestimate what is left of a job that will adapt.
"""

import math
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from dljob.sim.inputs.shipped import find_folder
from dljob.sim.inputs.tables import Table
from dljob.sim.inputs.traces import Request

SAMPLES: Mapping[str, int] = {
    "LM": 59_675,
    "Recommendation": 117_907,
    "ResNet-18": 50_000,
    "ResNet-50": 100_000,
    "Transformer": 10_000,
}
"""How many samples an epoch of each model has."""

LARGEST_BATCH: Mapping[str, int] = {
    "LM": 80,
    "Recommendation": 8192,
    "ResNet-18": 256,
    "ResNet-50": 128,
}
"""To what ``accordion`` raises the batch size; models that are not here do not adapt."""

SURELY_CRITICAL = 0.3
"""``accordion`` leaves the first epochs as they are, up to this share, to preserve accuracy."""

MODES = ("static", "accordion", "gns")

_JOB_TYPE = re.compile(r"(?P<model>.+) \(batch size (?P<batch>\d{1,9})\)", re.ASCII)


class Setup(NamedTuple):
    """The setup in which a throughput was measured. The batch size is that of one GPU."""

    model: str
    batch: int
    gpus: int


class Regime(NamedTuple):
    """Epochs in which ``accordion`` keeps the first batch size; they may recur periodically."""

    batch: int | None
    """Of which first batch size it is true; ``None``: of every one."""
    begin: int
    end: int
    every: int | None

    def holds(self, batch: int, epoch: int) -> bool:
        """Return whether this epoch of a job with that first batch size is critical."""
        if self.batch not in (None, batch):
            return False
        return self.begin <= (epoch % self.every if self.every else epoch) < self.end


class Lengths:
    """How long jobs of Shockwave run alone, from the shipped tables."""

    def __init__(self, folder: Path | None = None) -> None:
        home = (folder or find_folder()) / "shockwave"
        self._steps = _load_steps(home / "throughput.csv")
        self._growth = _load_growth(home / "gns.csv")
        self._regimes = _load_regimes(home / "accordion.csv")

    def measure(self, request: Request) -> float:
        """Return how many seconds the job runs on its GPUs without interruption."""
        setup = self._read_setup(request)
        model = setup.model
        if request.adaptation not in MODES:
            raise request.row.error(
                f"{request.adaptation!r} is no way to adapt a batch size",
                field="adaptation_mode",
                remedy=f"write one of {', '.join(MODES)}",
            )
        epochs = math.ceil(request.iterations / math.ceil(SAMPLES[model] / setup.batch))
        sizes = self._iter_batches(setup, request.adaptation, epochs=epochs)
        alone = math.fsum(
            SAMPLES[model] / batch / self._steps[setup._replace(batch=batch)] for batch in sizes
        )
        # How much slower the trace's GPUs are than those of the table.
        return alone * request.duration * self._steps[setup] / request.iterations

    def _read_setup(self, request: Request) -> Setup:
        parts = _JOB_TYPE.fullmatch(request.model)
        setup = Setup(parts["model"], int(parts["batch"]), request.gpus) if parts else None
        if setup is None or setup not in self._steps:
            known = sorted({f"{each.model} (batch size {each.batch})" for each in self._steps})
            raise request.row.error(
                f"{request.model!r} was not measured on {request.gpus} GPUs",
                field="job_type",
                remedy=f"take 1, 2, 4 or 8 GPUs and one of {', '.join(known)}",
            )
        return setup

    def _iter_batches(self, setup: Setup, mode: str, *, epochs: int) -> Iterator[int]:
        """Yield the batch size of each epoch."""
        if mode == "gns":
            return self._iter_gns(setup, epochs)
        if mode == "accordion" and setup.model in LARGEST_BATCH:
            return self._iter_accordion(setup, epochs)
        return iter([setup.batch] * epochs)

    def _iter_gns(self, setup: Setup, epochs: int) -> Iterator[int]:
        steps = self._growth.get(setup, {})
        batch = setup.batch
        for epoch in range(epochs):
            batch = steps.get(epoch, batch)
            yield batch

    def _iter_accordion(self, setup: Setup, epochs: int) -> Iterator[int]:
        regimes = self._regimes[setup.model]
        for epoch in range(epochs):
            is_critical = any(regime.holds(setup.batch, epoch) for regime in regimes)
            keeps = is_critical or epoch <= SURELY_CRITICAL * epochs
            yield setup.batch if keeps else LARGEST_BATCH[setup.model]


def _load_steps(path: Path) -> Mapping[Setup, float]:
    table = Table.read(path, required=("model", "local_batch_size", "num_gpus", "steps_per_s"))
    return {
        Setup(
            row.name("model"),
            row.whole("local_batch_size", least=1),
            row.whole("num_gpus", least=1),
        ): row.positive("steps_per_s")
        for row in table
    }


def _load_growth(path: Path) -> Mapping[Setup, Mapping[int, int]]:
    """Read the epochs from which ``gns`` runs with another batch size."""
    columns = ("model", "local_batch_size", "num_gpus", "from_epoch", "new_batch_size")
    growth: dict[Setup, dict[int, int]] = {}
    for row in Table.read(path, required=columns):
        setup = Setup(
            row.name("model"),
            row.whole("local_batch_size", least=1),
            row.whole("num_gpus", least=1),
        )
        steps = growth.setdefault(setup, {})
        steps[row.whole("from_epoch", least=1)] = row.whole("new_batch_size", least=1)
    return growth


def _load_regimes(path: Path) -> Mapping[str, tuple[Regime, ...]]:
    columns = ("model", "local_batch_size", "from_epoch", "until_epoch", "every")
    regimes: dict[str, tuple[Regime, ...]] = {}
    for row in Table.read(path, required=columns):
        regime = Regime(
            row.whole("local_batch_size", least=1, default=0) or None,
            row.whole("from_epoch", least=0),
            row.whole("until_epoch", least=1),
            row.whole("every", least=1, default=0) or None,
        )
        regimes[row.name("model")] = (*regimes.get(row.name("model"), ()), regime)
    return regimes
