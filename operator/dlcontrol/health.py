"""
GPUs with broken hardware, as SideCars report them: nobody new is given such a one.

It is remembered for as long as the controller lives, whatever becomes of the SideCar that reported
it, until somebody gives the GPU back by hand. What was reported until then is pardoned for good, and
only what is reported beyond that counts again.
"""

import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

from dlcontrol.observing import marked
from dlcontrol.scene import Scene
from dlcontrol.verdicts import News
from dlcore.model import GpuRef, JobId, NodeName
from dlcore.problems import listed

log = logging.getLogger(__name__)

HARDWARE_XIDS: Mapping[int, str] = MappingProxyType(
    {
        48: "double-bit ECC error",
        62: "internal micro-controller halted",
        64: "memory row cannot be remapped",
        74: "NVLink error",
        79: "fallen off the bus",
        95: "uncontained ECC error",
        119: "GSP does not answer",
        120: "GSP error",
    }
)
"""What the driver reports when the device is at fault. Most others are bugs of a user's program."""


@dataclass(frozen=True, slots=True)
class _Report:
    """What is said against a GPU."""

    xids: frozenset[tuple[str, int]] = frozenset()
    """Each with the SideCar that saw it; to a later one the same error is a new one."""
    ecc: int = 0

    def joined(self, other: "_Report") -> "_Report":
        return _Report(self.xids | other.xids, max(self.ecc, other.ecc))

    def beyond(self, other: "_Report") -> "_Report":
        return _Report(self.xids - other.xids, self.ecc if self.ecc > other.ecc else 0)

    @property
    def sentence(self) -> str:
        """Say it; empty if there is nothing to say."""
        errors = [f"Xid {code} ({HARDWARE_XIDS[code]})" for code in sorted(self._codes)]
        if self.ecc:
            errors.append(f"{self.ecc} uncorrected memory error{'s' if self.ecc > 1 else ''}")
        return f"it reported {listed(errors, 'and')}" if errors else ""

    @property
    def _codes(self) -> set[int]:
        return {code for _, code in self.xids}


class Returns:
    """Which nodes somebody has taken out by hand and given back, which says that all of it is well."""

    def __init__(self) -> None:
        self._cordoned: frozenset[NodeName] = frozenset()

    def look(self, scene: Scene) -> frozenset[NodeName]:
        """Tell which are back since the last look."""
        cordoned = frozenset(n for n, node in scene.nodes.items() if not node.schedulable)
        back = frozenset(name for name in self._cordoned if name in scene.nodes) - cordoned
        # A node that is away at the moment was not given back.
        self._cordoned = (self._cordoned - back) | cordoned
        return back


class Health:
    """Which GPUs are broken, as far as this controller has heard."""

    def __init__(self) -> None:
        self._faults: dict[GpuRef, str] = {}
        self._reports: dict[GpuRef, _Report] = {}
        """What is reported now."""
        self._pardons: dict[GpuRef, _Report] = {}
        self._returns = Returns()

    def look(self, scene: Scene) -> tuple[GpuRef, ...]:
        """Learn what SideCars report; returns the GPUs that are known as broken only now."""
        self._reports = _reports(scene)
        back = self._returns.look(scene)
        for ref in [ref for ref in self._faults if ref.node in back]:
            self.forgive(ref)
        found = {
            ref: report.beyond(self._pardons.get(ref, _Report())).sentence
            for ref, report in self._reports.items()
            if ref not in self._faults
        }
        new = {ref: why for ref, why in found.items() if why}
        self._faults |= new
        for ref, why in new.items():
            log.warning("GPU %s is given to nobody any more: %s", ref, why)
        return tuple(new)

    def mark(self, scene: Scene) -> Scene:
        """Show the scene with those that are broken out of service."""
        if not self._faults:
            return scene
        nodes = {name: marked(node, self._faults) for name, node in scene.nodes.items()}
        return replace(scene, nodes=nodes)

    def news(self, scene: Scene, refs: tuple[GpuRef, ...]) -> Iterator[tuple[JobId, News]]:
        """Tell whoever has one of these of it."""
        for ref in refs:
            owners = {*scene.holders.get(ref, ()), *filter(None, [scene.claims.get(ref)])}
            message = f"GPU {ref}: {self._faults[ref]}; once it is free, nobody is given it"
            for job in sorted(owners):
                yield job, News("GpuBroken", message, warning=True)

    def forgive(self, ref: GpuRef) -> bool:
        """Somebody says that it is well again; tells whether it was known as broken."""
        self._pardons[ref] = self._reports.get(ref, _Report())
        return self._faults.pop(ref, None) is not None


def _reports(scene: Scene) -> dict[GpuRef, _Report]:
    """Put together what all SideCars say that see a GPU."""
    reports: dict[GpuRef, _Report] = {}
    states = (
        (node, seat.state)
        for seats in scene.seats.values()
        for node, seat in seats.items()
        if seat.state is not None
    )
    for node, state in states:
        for gpu in state.gpus:
            codes = HARDWARE_XIDS.keys() & gpu.xid_errors
            report = _Report(frozenset((state.incarnation, x) for x in codes), gpu.ecc_errors)
            ref = scene.find_gpu(node, gpu)
            if ref is not None and report != _Report():
                reports[ref] = reports.get(ref, _Report()).joined(report)
    return reports
