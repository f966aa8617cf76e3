"""
The common part of the benchmarks of policies that search: quality and time, by the limit of the search.

Such a policy has an option that limits its work. The brain has no clock, so that the same jobs get the
same decision on any machine; work is what takes time, so a limit of work keeps a limit of time on the
machine at hand. Both are measured: what comes out of a workload, and the processor time of the decisions.
"""

import gc
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from _measuring import save, summarize
from matplotlib.figure import Figure

from dljob.core.contract import Decision, Policy, View
from dljob.sim.engine.settings import Setting
from dljob.sim.jobs.workloads import Workload
from dljob.sim.results.scoring import Score
from dljob.sim.simulating import Contestant, simulate


class _Timed:
    """A policy whose decisions are timed."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self.times_ms: list[float] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._policy, name)

    def allocate(self, view: View) -> Decision:
        """Let the policy decide."""
        began = time.process_time()
        decision = self._policy.allocate(view)
        self.times_ms.append((time.process_time() - began) * 1000.0)
        return decision


def play(policy: Policy, workload: Workload, setting: Setting) -> tuple[Score, dict[str, float]]:
    """Play a workload: its score, and what its decisions took, in milliseconds of processor time."""
    timed = _Timed(policy)
    gc.collect()
    (outcome,) = simulate(
        workload, setting, contestants=[Contestant(policy.name, cast(Policy, timed))]
    )
    return outcome.score, summarize(timed.times_ms)


def draw_budgets(
    path: Path,
    title: str,
    rows: Sequence[Mapping[str, Any]],
    *,
    budget: str,
    across: str,
    quality: str,
    up: str,
    times: Mapping[str, tuple[str, str]],
) -> None:
    """Draw quality above ``times``, each a figure of the rows, all over the budget."""
    figure = Figure(figsize=(5.6, 5.0), layout="constrained")
    above, below = figure.subplots(2, sharex=True)
    budgets = [row[budget] for row in rows]
    above.semilogx(budgets, [row[quality] for row in rows], "-", marker="o", color="black")
    above.set(title=title, ylabel=up)
    for (name, (figures, which)), look in zip(times.items(), ("-", "--"), strict=False):
        taken = [row[figures][which] for row in rows]
        below.loglog(budgets, taken, look, marker="s", color="black", label=name)
    below.set(xlabel=across, ylabel="a decision, ms of processor time")
    below.legend()
    for axes in (above, below):
        axes.spines[["top", "right"]].set_visible(False)
    save(figure, path)
