"""GPUs are reported as far as NVML provides values, and missing values stop nothing."""

# ruff: noqa: N802, N815 - the names are those of NVML
from __future__ import annotations

import os
import time
from dataclasses import replace
from types import SimpleNamespace

from dljob_sidecar.linux import kernel
from dljob_sidecar.observing.gpus import nvml as gpus
from dljob_sidecar.observing.gpus.gpu_thread import Bases
from dljob_sidecar.processes.releasing import Base, is_stranger, measure
from dljob_sidecar.serving.admitting import Naming, name_gpus
from dljob_wire.messages import Gpu, GpuProcess
from dljob_wire.training import GpuIds


class Library:
    """NVML of a machine with two GPUs, as nvidia-ml-py shows it."""

    class NVMLError(Exception):
        def __str__(self):
            return "it is lost"

    def __init__(self):
        self.used = [1 << 20, 2 << 30]
        self.events = []
        self.lost = set()
        self.handleless = set()
        self.minors = [7000, 7001]  # There are no files of these.
        self.can_tell_events = True

    def nvmlInit(self):
        pass

    nvmlShutdown = nvmlInit

    def nvmlDeviceGetCount(self):
        return 2

    def nvmlDeviceGetHandleByIndex(self, index):
        if index in self.handleless:
            raise self.NVMLError
        return index

    def nvmlDeviceGetUUID(self, handle):
        return f"GPU-{handle}".encode()  # Old versions answer in bytes.

    def nvmlDeviceGetMinorNumber(self, handle):
        return self.minors[handle]

    def nvmlDeviceGetName(self, handle):
        return "V100"

    def nvmlDeviceGetMemoryInfo(self, handle):
        if handle in self.lost:
            raise self.NVMLError
        return SimpleNamespace(used=self.used[handle], total=16 << 30)

    def nvmlDeviceGetUtilizationRates(self, handle):
        if handle == 1:
            raise self.NVMLError
        return SimpleNamespace(gpu=50)

    def nvmlDeviceGetTotalEccErrors(self, handle, kind, counter):
        return 3 if handle else 0

    def nvmlEventSetCreate(self):
        if not self.can_tell_events:
            raise self.NVMLError
        return "set"

    def nvmlDeviceRegisterEvents(self, handle, kind, events):
        pass

    def nvmlEventSetWait_v2(self, events, limit):
        if not self.events:
            raise self.NVMLError
        return self.events.pop()


def test_readable_values_are_reported():
    library = Library()
    library.events = [
        SimpleNamespace(device=1, eventData=79),
        SimpleNamespace(device=1, eventData=79),
    ]
    first, second = read = gpus.Nvml(library).read()
    assert first == Gpu(0, "GPU-0", "V100", 0.5, 1 << 20, 16 << 30)
    assert second.utilization == 0.0
    assert (second.xid_errors, second.ecc_errors) == ((79,), 3)
    bases = Bases()
    assert [one.busy_unassigned for one in bases.mark_strangers(read, ["GPU-0"])] == [False, True]
    assert not any(one.busy_unassigned for one in bases.mark_strangers(read, ["0", "1"]))
    library.can_tell_events = False
    assert len(gpus.Nvml(library).read()) == 2


def test_gpu_without_handle_is_lost():
    library = Library()
    library.handleless.add(0)
    first, second = gpus.Nvml(library).read()
    assert first == Gpu(0, lost_because="NVML cannot use it: it is lost")
    assert (second.uuid, second.lost_because) == ("GPU-1", "")
    assert gpus.find_lost([first, second], ["0"]) == [f"GPU 0 (): {first.lost_because}"]


THREE = [Gpu(index, f"GPU-{index}") for index in range(3)]
WITHOUT_1 = [Gpu(0, "GPU-0"), Gpu(1, "GPU-2")]
LOST_1 = [THREE[0], replace(THREE[1], lost_because="it is lost"), THREE[2]]


def test_gpus_are_named_as_the_job_wants():
    for present, given, wanted, names, unresolved in (
        (THREE, ("GPU-2", "GPU-0"), "index", {"GPU-2": "2", "GPU-0": "0"}, ()),
        (WITHOUT_1, ("GPU-2",), "index", {"GPU-2": "1"}, ()),
        # Whether CUDA counts GPU 1 is not known.
        (LOST_1, ("GPU-0", "GPU-2"), "index", {"GPU-0": "0", "GPU-2": "GPU-2"}, ()),
        (WITHOUT_1, ("GPU-1",), "index", {}, ("GPU-1",)),
        ([], ("1", "MIG-5f0c"), "index", {}, ()),
        (THREE, ("1", "GPU-2"), "uuid", {"1": "GPU-1", "GPU-2": "GPU-2"}, ()),
        ([], ("GPU-1", "1"), "uuid", {}, ()),
        (THREE, ("1", "GPU-2"), "given", {}, ()),
    ):
        named = name_gpus(present, given, wanted=GpuIds(wanted))
        assert named == Naming(names, unresolved), (present, given, wanted)


def used(*, mib=0, utilization=0.0, processes=()) -> Gpu:
    return Gpu(
        0,
        "GPU-0",
        utilization=utilization,
        memory_used=mib << 20,
        memory_total=80 << 30,
        processes=tuple(processes),
    )


def test_use_by_others_is_described():
    two = [GpuProcess(7, 1), GpuProcess(8)]
    for gpu, why in (
        (used(), ""),
        (used(mib=512), ""),
        (used(mib=513), "513 MiB of it are in use by others"),
        (used(utilization=0.04), ""),
        (used(utilization=0.97), "it is 97% busy with work of others"),
        (used(processes=two[:1]), "process 7 computes on it"),
        (used(processes=two), "process 7 (and 1 more) computes on it"),
        # The memory of a display is no sign of work.
        (used(mib=700, processes=[GpuProcess(7, 300 << 20, draws=True)]), ""),
    ):
        assert Bases().why_used(gpu) == why


def test_memory_above_the_baseline_counts_as_used():
    bases = Bases()
    bases.see([used(mib=100)])
    assert bases.why_used(used(mib=356)) == ""
    assert bases.why_used(used(mib=357)) == "357 MiB of it are in use by others"
    # The memory of a process, or more than that of an idle driver, is no baseline.
    fresh = Bases()
    fresh.see([used(mib=300, processes=[GpuProcess(7)]), used(mib=5000)])
    assert fresh.why_used(used(mib=500)) == ""
    assert fresh.why_used(used(mib=5000)) == "5,000 MiB of it are in use by others"


def test_memory_above_the_baseline_is_unreleased():
    library = Library()
    reader = gpus.Nvml(library)
    base = measure(reader.read(), ["0", "1"])
    assert not base.find_unreleased(reader.read())
    library.lost.add(1)
    assert list(base.find_unreleased(reader.read())) == ["GPU-1"]
    assert list(base.find_unreleased([])) == ["GPU-0", "GPU-1"]
    # The release does not wait for a GPU that was never reported.
    assert measure(reader.read(), ["0", "1"]).bases == {"GPU-0": Base(1 << 20, {})}


STRANGER, NEWCOMER, SUSPECT = 100, 200, 300
GIB = 1 << 30


def on_gpu(used_gib, **processes_gib):
    """Return the report of one GPU with these processes."""
    pids = {"stranger": STRANGER, "newcomer": NEWCOMER, "suspect": SUSPECT}
    there = tuple(GpuProcess(pids[name], gib * GIB) for name, gib in processes_gib.items())
    return [Gpu(0, "GPU-0", memory_used=used_gib * GIB, memory_total=80 * GIB, processes=there)]


def test_memory_of_strangers_is_excluded():
    for before, after, more in (
        # An earlier process may take more, and so may one that is proven to be foreign.
        (on_gpu(1, stranger=1), on_gpu(9, stranger=9), ""),
        (on_gpu(0), on_gpu(4, newcomer=4), ""),
        # Any other may belong to the job.
        (on_gpu(0), on_gpu(4, suspect=4), "4096 MiB more than before the start, where NVML names"),
        (on_gpu(1, stranger=1), on_gpu(9, stranger=5, suspect=4), "4096 MiB more"),
        # Memory without a process belongs to the driver, or to a process that NVML does not list.
        (on_gpu(0), on_gpu(2), "2048 MiB more than before the start"),
        # Memory that a stranger frees cannot hide that of our processes.
        (on_gpu(8, stranger=8), on_gpu(4, suspect=4), "4096 MiB more"),
    ):
        release = replace(measure(before, ["0"]), is_stranger=lambda pid: pid == NEWCOMER)
        reasons = release.find_unreleased(after)
        assert (more in reasons["GPU-0"]) if more else (reasons == {}), (before, after)


def test_process_older_than_the_start_is_a_stranger(monkeypatch):
    now_ticks = time.clock_gettime(time.CLOCK_BOOTTIME) * os.sysconf("SC_CLK_TCK")
    assert not is_stranger(os.getpid(), now_ticks + 1000)
    root = os.open("/proc", os.O_RDONLY | os.O_DIRECTORY)
    try:
        monkeypatch.setattr(kernel, "outer_proc", root)
        assert is_stranger(os.getpid(), now_ticks + 1000)
        assert not is_stranger(os.getpid(), 0)
        assert not is_stranger(1 << 30, now_ticks + 1000)
    finally:
        os.close(root)


def test_gpu_that_cannot_be_opened_any_more_is_lost(tmp_path, monkeypatch):
    monkeypatch.setattr(gpus, "DEVICE", f"{tmp_path}/nvidia{{}}")
    library = Library()
    device = tmp_path / "nvidia7001"
    device.touch()
    reader = gpus.Nvml(library)
    assert [one.lost_because for one in reader.read()] == ["", ""]
    device.unlink()
    first, second = reader.read()
    assert first.lost_because == ""
    assert second.lost_because == f"{device} cannot be opened: No such file or directory"
    assert gpus.find_lost([first, second], ["0", "GPU-1"]) == [
        f"GPU 1 (GPU-1): {second.lost_because}"
    ]
    assert gpus.find_lost([first, second], ["0"]) == []
    device.touch()
    assert [one.lost_because for one in reader.read()] == ["", ""]


def test_unknown_ids_are_found():
    # A MIG instance is not a missing GPU.
    given = ["0", "GPU-1", "2", "GPU-9", "MIG-5f0c"]
    assert gpus.find_unknown(gpus.Nvml(Library()).read(), given) == ["2", "GPU-9"]


def test_environment_has_the_gpu_count():
    for cuda, nvidia, count in (
        (None, None, 0),
        (None, "all", 0),
        (None, "GPU-a,GPU-b", 2),
        ("3", "0,1,2,3", 1),
        ("", "0,1", 2),
    ):
        given = {"CUDA_VISIBLE_DEVICES": cuda, "NVIDIA_VISIBLE_DEVICES": nvidia}
        environment = {name: value for name, value in given.items() if value is not None}
        assert gpus.count_named(environment) == count, environment
