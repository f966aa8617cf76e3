"""GPUs with broken hardware: their reports, the Events about them, and that no further job gets one."""

import json
from dataclasses import replace

import pytest

from dljob.control.gpus.faults import GpuFaults
from dljob.control.situation.ports import BootState
from dljob.core import policies
from dljob.core.model import Gpu, GpuRef, NodeName
from dljob_wire.messages import Gpu as Seen
from tests.control.governing import governed, submit, told
from tests.control.scenes import cast, make_scene, run, running

N0 = NodeName("n0")
BROKEN = GpuRef(N0, 1)
FELL_OFF = "it reported Xid 79 (fallen off the bus)"


def reporting(*seen: Seen, holds=(0, 1), incarnation="x"):
    told = running(run(3, *holds, incarnation=incarnation), incarnation=incarnation)
    return make_scene(cast("a", {"n0": holds}, n0=replace(told, gpus=seen)))


def broken(faults, scene):
    faults.update(scene)
    gpus = faults.mark(scene).nodes[N0].gpus
    return {gpu.index: gpu.unavailable_because for gpu in gpus if gpu.unavailable_because}


@pytest.mark.parametrize(
    ("seen", "why"),
    [
        (Seen(1, xid_errors=(79,)), FELL_OFF),
        (Seen(1, xid_errors=(13, 48, 31)), "it reported Xid 48 (double-bit ECC error)"),
        (Seen(1, ecc_errors=1), "it reported 1 uncorrected memory error"),
        (
            Seen(1, xid_errors=(95, 79), ecc_errors=3),
            f"{FELL_OFF}, Xid 95 (uncontained ECC error) and 3 uncorrected memory errors",
        ),
    ],
)
def test_gpu_with_a_hardware_fault_is_taken_out(seen, why):
    assert broken(GpuFaults(), reporting(Seen(0), seen)) == {1: why}


@pytest.mark.parametrize("seen", [Seen(1), Seen(1, xid_errors=(13, 31, 43), busy_unassigned=True)])
def test_errors_of_programs_do_not_count(seen):
    assert broken(GpuFaults(), reporting(seen)) == {}


def test_gpu_is_known_by_its_uuid():
    scene = reporting(Seen(0, uuid="GPU-b", xid_errors=(79,)), Seen(1, uuid="GPU-z", ecc_errors=1))
    node = replace(scene.nodes[N0], gpus=(Gpu(0, "GPU-a"), Gpu(1, "GPU-b")))
    assert broken(GpuFaults(), replace(scene, nodes={N0: node})) == {1: FELL_OFF}


def test_fault_is_remembered_without_reports():
    faults = GpuFaults()
    assert faults.update(reporting(Seen(1, xid_errors=(79,)))) == (BROKEN,)
    assert broken(faults, make_scene()) == {1: FELL_OFF}


def test_only_the_owner_of_the_gpu_is_notified():
    faults = GpuFaults()
    scene = reporting(Seen(1, xid_errors=(79,)), Seen(2, ecc_errors=1), holds=(0, 1))
    (suspected, (job, news)) = faults.news(scene, faults.update(scene))
    assert suspected[1].reason == "GpuSuspected"
    assert (job, news.reason, news.warning) == ("a", "GpuBroken", True)
    assert news.message == f"GPU n0/1: {FELL_OFF}; once it is free, no job gets it"


def test_reinstated_gpu_is_out_again_only_for_new_errors():
    faults, scene = GpuFaults(), reporting(Seen(1, xid_errors=(79,), ecc_errors=2))
    faults.update(scene)
    assert faults.reinstate(BROKEN)
    assert not faults.reinstate(BROKEN)
    assert broken(faults, scene) == {}
    later = reporting(Seen(1, xid_errors=(79, 119), ecc_errors=2))
    assert broken(faults, later) == {1: "it reported Xid 119 (GSP does not answer)"}


def test_same_error_from_a_later_sidecar_is_new():
    faults, seen = GpuFaults(), Seen(1, xid_errors=(79,))
    faults.update(reporting(seen))
    faults.reinstate(BROKEN)
    assert broken(faults, reporting(seen, incarnation="y")) == {1: FELL_OFF}


def test_taking_the_node_out_and_in_forgives():
    faults, scene = GpuFaults(), reporting(Seen(1, xid_errors=(79,)))
    faults.update(scene)
    out = replace(scene, nodes={N0: replace(scene.nodes[N0], schedulable=False)})
    away = replace(scene, nodes={})
    for each in (out, away):
        assert faults.update(each) == ()
    assert broken(faults, scene) == {}


def machine(scene, *uuids, boot="first", pardons=None):
    node = replace(scene.nodes[N0], gpus=tuple(Gpu(n, uuid) for n, uuid in enumerate(uuids)))
    return replace(scene, nodes={N0: node}, machines={N0: BootState(boot, pardons or {})})


TWO = ("GPU-a", "GPU-b")
ILL = Seen(1, "GPU-b", xid_errors=(79,), ecc_errors=2)


def known(**machine_is):
    """A controller that knows a fault of the second of two GPUs."""
    faults = GpuFaults()
    assert broken(faults, machine(reporting(ILL), *TWO, **machine_is)) != {}
    return faults


@pytest.mark.parametrize(
    ("uuids", "boot", "out"),
    [
        (TWO, "first", [1]),
        (("GPU-b", "GPU-a"), "first", [0]),
        (("GPU-a", "GPU-c"), "first", []),
        (TWO, "second", []),
        (("GPU-a", ""), "first", [1]),
        (TWO, "", [1]),
    ],
)
def test_fault_belongs_to_a_device_and_a_boot(uuids, boot, out):
    assert list(broken(known(), machine(make_scene(), *uuids, boot=boot))) == out


def test_each_new_pardon_on_the_node_counts_once():
    """The value says nothing by itself: it may be a pardon of an earlier fault."""
    faults = GpuFaults()
    scene = reporting(ILL)
    assert list(broken(faults, machine(scene, *TWO, pardons={1: "monday"}))) == [1]
    assert list(broken(faults, machine(scene, *TWO, pardons={1: "monday"}))) == [1]
    assert list(broken(faults, machine(scene, *TWO, pardons={1: "tuesday"}))) == []
    worse = reporting(replace(ILL, ecc_errors=3))
    assert list(broken(faults, machine(worse, *TWO, pardons={1: "tuesday"}))) == [1]
    assert list(broken(faults, machine(worse, *TWO, pardons={1: "tuesday"}))) == [1]


def succeeded(faults):
    successor = GpuFaults()
    successor.restore(json.loads(json.dumps(faults.write())))
    return successor


def test_next_controller_knows_the_fault():
    assert broken(succeeded(known()), machine(make_scene(), *TWO)) != {}
    assert broken(succeeded(known()), machine(make_scene(), *TWO, boot="second")) == {}
    assert broken(GpuFaults(), machine(make_scene(), *TWO)) == {}


def test_next_controller_knows_the_pardon():
    faults, scene = known(), machine(reporting(ILL), *TWO)
    faults.reinstate(BROKEN)
    assert broken(succeeded(faults), scene) == {}
    later = machine(reporting(replace(ILL, xid_errors=(79, 119))), *TWO)
    assert list(broken(succeeded(faults), later)) == [1]


def test_pardon_counts_while_no_controller_leads():
    for before, word, out in (({}, "now", []), ({1: "old"}, "now", []), ({1: "old"}, "old", [1])):
        successor = succeeded(known(pardons=before))
        unheard = machine(make_scene(), *TWO, pardons={1: word})
        assert list(broken(successor, unheard)) == out
        # A SideCar's later report brings nothing new.
        heard = machine(reporting(ILL), *TWO, pardons={1: word})
        assert list(broken(successor, heard)) == out


def test_broken_gpu_goes_to_no_further_job():
    with governed({"n0": 2}, policies.make("fifo")) as government:
        world = government.world
        first = submit(government, "first")
        government.begin(run=20.0)
        placement, pod = world.entries[first].status.placement, world.pod_of(first, N0)
        assert pod.container is not None
        (ref,) = placement.refs()
        well = Seen(1 - ref.number, uuid=f"GPU-n0-{1 - ref.number}")
        ill = Seen(ref.number, uuid=f"GPU-n0-{ref.number}", xid_errors=(79,))
        pod.container.report(well, ill)
        world.run(10.0)
        world.cancel(first)
        government.wake()
        world.run(60.0)
        assert first not in world.entries
        for name in ("second", "third"):
            submit(government, name)
        world.run(60.0)
        given = [entry.status.placement for entry in world.entries.values()]
        assert [each.refs() for each in given if each] == [(GpuRef(N0, 1 - ref.number),)]
        message = f"GPU {ref}: {FELL_OFF}; once it is free, no job gets it"
        assert ("GpuBroken", message) in told(government, first)
        assert "GpuBroken" in [news.reason for _, news in government.memory.news]
        assert government.leader.controller.observer.reinstate(ref)
        government.wake()
        world.run(60.0)
        assert all(entry.status.placement for entry in world.entries.values())
