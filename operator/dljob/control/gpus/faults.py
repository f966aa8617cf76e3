"""GPUs with broken hardware, as SideCars report them; no job newly gets such a GPU.

The fault outlives the SideCar that reported it, until a person reinstates the GPU, the GPU is
replaced or its machine reboots. Reports from before a reinstatement never count again; later ones
do. :meth:`GpuFaults.write` and :meth:`GpuFaults.restore` pass the faults to the next controller,
where the platform stores them.
"""

import logging
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import reduce
from types import MappingProxyType
from typing import Any, NamedTuple

from dljob.control.gpus.corroborating import Suspicions
from dljob.control.gpus.marking import marked
from dljob.control.situation.rules import News
from dljob.control.situation.scene import Scene
from dljob.core.model import GpuRef, JobId, NodeName
from dljob_wire.messages import State
from dljob_wire.problems import listed

log = logging.getLogger(__name__)

Json = dict[str, Any]

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
"""Driver errors that mean broken hardware. Most others are bugs of a user's program."""


@dataclass(frozen=True, slots=True)
class _Report:
    xids: frozenset[tuple[str, int]] = frozenset()
    """Each error with the SideCar that saw it; the same error from a later SideCar is a new one."""
    ecc: int = 0

    def joined(self, other: "_Report") -> "_Report":
        return _Report(self.xids | other.xids, max(self.ecc, other.ecc))

    def beyond(self, other: "_Report") -> "_Report":
        return _Report(self.xids - other.xids, self.ecc if self.ecc > other.ecc else 0)

    @property
    def sentence(self) -> str:
        """Return the faults as a sentence; empty if there are none."""
        errors = [
            f"Xid {code} ({HARDWARE_XIDS[code]})"
            for code in sorted({code for _, code in self.xids})
        ]
        if self.ecc:
            errors.append(f"{self.ecc} uncorrected memory error{'s' if self.ecc > 1 else ''}")
        return f"it reported {listed(errors, 'and')}" if errors else ""


class _Device(NamedTuple):
    """A GPU, during one uptime of its machine."""

    ref: GpuRef
    """The place where the GPU was seen last."""
    uuid: str = ""
    boot: str = ""

    @classmethod
    def at(cls, scene: Scene, ref: GpuRef) -> "_Device":
        node = scene.nodes.get(ref.node)
        uuid = next((gpu.uuid for gpu in node.gpus if gpu.index == ref.number), "") if node else ""
        return cls(ref, uuid, scene.machine(ref.node).boot)

    def find(self, scene: Scene) -> GpuRef | None:
        """Return the present place of the GPU; None if it is gone, or its machine has rebooted since."""
        node = scene.nodes.get(self.ref.node)
        if node is None:
            return self.ref  # The same GPU may come back.
        boot = scene.machine(node.name).boot
        if self.boot and boot and boot != self.boot:
            return None
        numbers = {gpu.uuid: gpu.index for gpu in node.gpus}
        if not self.uuid:
            return self.ref
        if self.uuid in numbers:
            return GpuRef(node.name, numbers[self.uuid])
        return None if all(numbers) else self.ref


_Reports = dict[_Device, _Report]


def _still_there(reports: _Reports, scene: Scene) -> _Reports:
    found = ((device, device.find(scene), report) for device, report in reports.items())
    return {device._replace(ref=ref): report for device, ref, report in found if ref is not None}


class ReturnedNodes:
    """The nodes that a person has cordoned and uncordoned, which reinstates all their GPUs."""

    def __init__(self) -> None:
        self._cordoned: frozenset[NodeName] = frozenset()

    def update(self, scene: Scene) -> frozenset[NodeName]:
        """Return the nodes that were uncordoned since the last call."""
        cordoned = frozenset(n for n, node in scene.nodes.items() if not node.schedulable)
        back = frozenset(name for name in self._cordoned if name in scene.nodes) - cordoned
        # A node that is absent at the moment was not uncordoned.
        self._cordoned = (self._cordoned - back) | cordoned
        return back


class Reinstatements:
    """The GPUs that a person has reinstated: a node shows a new token for each time."""

    def __init__(self) -> None:
        self.seen: dict[GpuRef, str] | None = None
        """The tokens at the last call; None before the first."""

    def update(self, scene: Scene) -> frozenset[GpuRef]:
        """Return the GPUs that a person has reinstated since the last call."""
        shown = {
            GpuRef(name, number): word
            for name in scene.nodes
            for number, word in scene.machine(name).pardons.items()
        }
        before = self.seen if self.seen is not None else shown
        # A node that is absent at the moment shows no token.
        away = {ref: word for ref, word in before.items() if ref.node not in scene.nodes}
        self.seen = away | shown
        return frozenset(ref for ref, word in shown.items() if before.get(ref) != word)


class GpuFaults:
    """The broken GPUs that SideCars reported to this controller and its predecessors."""

    def __init__(self) -> None:
        self._faults: _Reports = {}
        self._reinstated: _Reports = {}
        self._reports: dict[GpuRef, _Report] = {}
        """The current reports."""
        self._devices: dict[GpuRef, _Device] = {}
        """The devices of the current reports."""
        self._returned_nodes = ReturnedNodes()
        self._reinstatements = Reinstatements()
        self._suspicions = Suspicions()
        self._suspected: list[tuple[GpuRef, JobId]] = []
        """The suspected GPUs with the nodes that suspect them, for reports."""

    @property
    def faults(self) -> Mapping[GpuRef, str]:
        """The broken GPUs and the reasons."""
        return {device.ref: report.sentence for device, report in self._faults.items()}

    def update(self, scene: Scene) -> tuple[GpuRef, ...]:
        """Take in the reports of SideCars; return the newly broken GPUs."""
        testimonies = _testimonies(scene)
        self._reports = {ref: _joined(said.values()) for ref, said in testimonies.items()}
        self._faults = _still_there(self._faults, scene)
        self._reinstated = _still_there(self._reinstated, scene)
        self._devices = {ref: _Device.at(scene, ref) for ref in self._reports}
        returned, reinstated = (
            self._returned_nodes.update(scene),
            self._reinstatements.update(scene),
        )
        for ref in [ref for ref in self.faults if ref.node in returned or ref in reinstated]:
            self.reinstate(ref)
        new = self._weigh(scene, testimonies)
        for ref, report in new.items():
            self._suspicions.settle(ref)
            self._faults[self._devices[ref]] = report
            log.warning("GPU %s gets no more jobs: %s", ref, report.sentence)
        return tuple(new)

    def _weigh(
        self, scene: Scene, testimonies: Mapping[GpuRef, Mapping[JobId, _Report]]
    ) -> dict[GpuRef, _Report]:
        known = self.faults
        pardons: dict[GpuRef, _Report] = {}
        for device, report in self._reinstated.items():
            pardons[device.ref] = pardons.get(device.ref, _Report()).joined(report)
        said: dict[GpuRef, dict[JobId, _Report]] = {}
        for ref, by_job in testimonies.items():
            pardoned = pardons.get(ref, _Report())
            beyond = {job: report.beyond(pardoned) for job, report in by_job.items()}
            accusing = {job: each for job, each in beyond.items() if each != _Report()}
            if ref not in known and accusing:
                said[ref] = accusing
        for ref in self._suspicions.overtaken(scene, said):
            for device in [device for device in self._faults if device.ref == ref]:
                del self._faults[device]
        believed = self._suspicions.weigh(scene, _uncontradicted(said, testimonies, scene=scene))
        for ref, job in self._suspicions.news(believed):
            log.warning("GPU %s is suspected by job %s alone, and stays in service", ref, job)
            self._suspected.append((ref, job))
        return {ref: _joined(said[ref].values()) for ref in sorted(believed)}

    def mark(self, scene: Scene) -> Scene:
        """Mark the broken GPUs in the scene as out of service."""
        if not self._faults:
            return scene
        faults = self.faults
        nodes = {name: marked(node, faults) for name, node in scene.nodes.items()}
        return replace(scene, nodes=nodes)

    def news(self, scene: Scene, refs: tuple[GpuRef, ...]) -> Iterator[tuple[JobId, News]]:
        """Yield news for the owners of broken GPUs, and for the jobs that are alone in suspecting a
        GPU.
        """
        for ref, job in self._suspected:
            message = (
                f"GPU {ref} is suspected: {self._reports[ref].sentence} by this job's SideCar alone; it stays in"
                " service unless another job's SideCar or its node reports it as well"
            )
            yield job, News("GpuSuspected", message, warning=True)
        self._suspected.clear()
        faults = self.faults
        for ref in refs:
            owners = {*scene.holders.get(ref, ()), *filter(None, [scene.claims.get(ref)])}
            message = f"GPU {ref}: {faults[ref]}; once it is free, no job gets it"
            for job in sorted(owners):
                yield job, News("GpuBroken", message, warning=True)

    def reinstate(self, ref: GpuRef) -> bool:
        """Reinstate a GPU; return whether it was known as broken."""
        self._suspicions.settle(ref)
        broken = [device for device in self._faults if device.ref == ref]
        for device in broken:
            # The SideCar that reported the fault may not have reported to this controller yet.
            was = self._faults.pop(device)
            self._reinstated[device] = was.joined(self._reinstated.get(device, _Report()))
        if ref in self._reports:
            device = self._devices[ref]
            known = self._reinstated.get(device, _Report())
            self._reinstated[device] = known.joined(self._reports[ref])
        return bool(broken)

    # --- handed on

    def write(self) -> Json:
        """Return the state for the next controller."""
        return {
            "faults": [_write(*each) for each in self._faults.items()],
            "pardons": [_write(*each) for each in self._reinstated.items()],
            "seen": {str(ref): word for ref, word in (self._reinstatements.seen or {}).items()},
        }

    def restore(self, document: Json) -> None:
        """Restore the state of the former controller; raises an error if it cannot be read."""
        faults = dict(_read(each) for each in document.get("faults", ()))
        pardons = dict(_read(each) for each in document.get("pardons", ()))
        seen = {_read_ref(str(ref)): str(word) for ref, word in document.get("seen", {}).items()}
        self._faults, self._reinstated, self._reinstatements.seen = faults, pardons, seen


def _write(device: _Device, report: _Report) -> Json:
    document = {
        "gpu": str(device.ref),
        "uuid": device.uuid,
        "boot": device.boot,
        "xids": [list(each) for each in sorted(report.xids)],
        "ecc": report.ecc,
    }
    return {name: value for name, value in document.items() if value}


def _read(document: Json) -> tuple[_Device, _Report]:
    ref = _read_ref(document["gpu"])
    device = _Device(ref, document.get("uuid", ""), document.get("boot", ""))
    xids = frozenset((str(who), int(code)) for who, code in document.get("xids", ()))
    known = frozenset(each for each in xids if each[1] in HARDWARE_XIDS)
    return device, _Report(known, int(document.get("ecc", 0)))


def _read_ref(text: str) -> GpuRef:
    node, _, number = text.rpartition("/")
    return GpuRef(NodeName(node), int(number))


def _joined(reports: Iterable[_Report]) -> _Report:
    return reduce(_Report.joined, reports, _Report())


def _testimonies(scene: Scene) -> dict[GpuRef, dict[JobId, _Report]]:
    """Collect, by job, the errors that SideCars report about the GPUs they see."""
    said: dict[GpuRef, dict[JobId, _Report]] = {}
    for job, node, state in _iter_states(scene):
        for gpu in state.gpus:
            codes = HARDWARE_XIDS.keys() & gpu.xid_errors
            report = _Report(frozenset((state.incarnation, x) for x in codes), gpu.ecc_errors)
            ref = scene.gpu_names.find_seen(node, gpu) if report != _Report() else None
            if ref is not None:
                by_job = said.setdefault(ref, {})
                by_job[job] = by_job.get(job, _Report()).joined(report)
    return said


def _uncontradicted(
    said: Mapping[GpuRef, Mapping[JobId, _Report]],
    testimonies: Mapping[GpuRef, Mapping[JobId, _Report]],
    *,
    scene: Scene,
) -> dict[GpuRef, list[JobId]]:
    """Leave out errors that another job's SideCar on the node contradicts.

    The driver counts memory errors per GPU, so every container that sees the GPU sees the same
    number.
    """
    nodes = {ref.node for ref in testimonies}
    seen: dict[GpuRef, set[JobId]] = {}
    """The jobs that see these GPUs without the memory errors that others report."""
    for job, node, state in _iter_states(scene):
        for gpu in state.gpus if node in nodes else ():
            ref = scene.gpu_names.find_seen(node, gpu)
            if ref is not None and ref in testimonies and not gpu.ecc_errors:
                seen.setdefault(ref, set()).add(job)
    return {
        ref: [
            job for job, report in by_job.items() if report.xids or not seen.get(ref, set()) - {job}
        ]
        for ref, by_job in said.items()
    }


def _iter_states(scene: Scene) -> Iterator[tuple[JobId, NodeName, State]]:
    for job, job_pods in scene.job_pods.items():
        for node, job_pod in job_pods.items():
            if job_pod.state is not None:
                yield job, node, job_pod.state
