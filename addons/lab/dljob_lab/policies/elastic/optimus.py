"""
The termination baseline of the SideCar paper: one GPU first, then one by one, never down.

Wang et al., section V.B, after Peng et al., "Optimus" (EuroSys 2018), section 4.1.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import ClassVar

from dljob.core.assuming import BY_TIMES, Assumes
from dljob.core.checking import Law
from dljob.core.contract import Decision, View
from dljob.core.model import Cause, CauseCode, JobState, NodeName
from dljob.core.placement.free_gpus import grow
from dljob.core.placement.largest import acceptable_types
from dljob.core.policies.common.holdings import Holding, Ledger
from dljob_lab.policies.common.gains import time_saved

_NO_ROOM = Cause(CauseCode.NO_ROOM)
_ITS_TURN = Cause(CauseCode.ITS_TURN)
_FASTER_WITH_MORE = Cause(CauseCode.FASTER_WITH_MORE)


@dataclass(frozen=True, slots=True)
class Optimus:
    """
    Start every job with the least it can run on, and let it grow step by step while GPUs idle.

    Incoming jobs come first, by priority and arrival, each on the emptiest node of its fastest
    type so that it can grow there; any that fits may pass one that does not. When none is left
    that fits, idle GPUs go to running jobs, the largest gain first.

    Where the papers leave room: "one by one" is one optional number of GPUs at a time, and a job
    is asked again only when the change before has ended, because the search is gradual ("adds
    idle GPUs to the job one by one based on job termination"). The gain is the training time
    saved. As in Optimus it does not count what the restart costs, which is why the paper can
    report a quarter of all time lost to restarts. A job is never given fewer GPUs.
    """

    name: ClassVar[str] = "optimus"
    paper: ClassVar[str] = "SideCar (Wang et al.), V.B; Optimus (Peng et al.), 4.1"
    needs: ClassVar[str] = "speeds by shape and remaining iterations"
    assumes: ClassVar[Assumes] = BY_TIMES
    breaks: ClassVar[frozenset[Law]] = frozenset()

    def allocate(self, view: View) -> Decision:
        """Start whom there is room for, then let running jobs take one step each."""
        ledger = Ledger(view)
        _start_incoming(ledger, view.pending)
        _enlarge_running(ledger)
        shares = {job: holding.share(_ITS_TURN) for job, holding in ledger.holdings.items()}
        return Decision(shares=shares, wait=_NO_ROOM)


def _start_incoming(ledger: Ledger, pending: Iterable[JobState]) -> None:
    for state in sorted(pending, key=lambda s: (-s.job.priority, s.order)):
        if ledger.room.total <= 0:
            return
        nodes = _find_start(ledger, state)
        if nodes is not None:
            ledger.add(state, nodes, cause=_ITS_TURN)


def _find_start(ledger: Ledger, state: JobState) -> Mapping[NodeName, int] | None:
    """The emptiest node of the fastest type; several, or several types, only if it must be."""
    predictor, gpus = ledger.view.predictor, state.least
    kinds = acceptable_types(state, ledger.cluster)
    speeds = {kind: predictor.speed(state.job, predictor.shape(gpus, kind)) for kind in kinds}
    for kind in sorted(kinds, key=lambda kind: -speeds[kind]):
        node = None if state.bound_to else ledger.room.find_emptiest(state, kind, gpus)
        if node is not None:
            return {node: gpus}
        fit = ledger.room.find(state, gpus, kind)
        if fit is not None:
            return fit.nodes
    mixture = ledger.room.find(state, gpus) if state.job.gpus.mixed else None
    return mixture.nodes if mixture is not None else None


def _enlarge_running(ledger: Ledger) -> None:
    steps = [step for h in ledger.holdings.values() if (step := _next_step(ledger, h))]
    for _, _, gpus, holding in sorted(steps, key=lambda step: step[:2]):
        if ledger.room.total <= 0:
            return
        nodes = grow(ledger.room, holding.state, holding.nodes, holding.gpu_type, gpus)
        if nodes is not None:
            ledger.change(holding, nodes, cause=_FASTER_WITH_MORE)


def _next_step(ledger: Ledger, holding: Holding) -> tuple[float, int, int, Holding] | None:
    """The next optional number of GPUs of a running job, if it trains faster with it."""
    state = holding.state
    if state.adjusting or state.placement is None:
        return None
    gpus = next((n for n in state.job.gpus.options if n > holding.gpus), None)
    if gpus is None:
        return None
    after = ledger.view.predictor.shape(gpus, holding.gpu_type)
    saved = time_saved(ledger.view, state, before=state.placement.shape, after=after)
    return (-saved, state.order, gpus, holding) if saved > 0.0 else None
