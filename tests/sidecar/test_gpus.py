"""What GPUs say of themselves is told where it can be read, and its lack stops nothing."""

# ruff: noqa: N802, N815 - the names are those of NVML
from __future__ import annotations

from types import SimpleNamespace

import pytest

from dlsidecar import gpus
from dlwire.messages import Gpu


class Library:
    """NVML of a machine with two GPUs, as nvidia-ml-py shows it."""

    class NVMLError(Exception):
        pass

    def __init__(self):
        self.used = [1 << 20, 2 << 30]
        self.events = []
        self.lost = set()
        self.minors = [7000, 7001]  # There are no files of these.
        self.can_tell_events = True

    def nvmlInit(self):
        pass

    nvmlShutdown = nvmlInit

    def nvmlDeviceGetCount(self):
        return 2

    def nvmlDeviceGetHandleByIndex(self, index):
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


def test_everything_is_read_and_what_cannot_be_is_left_out():
    library = Library()
    library.events = [
        SimpleNamespace(device=1, eventData=79),
        SimpleNamespace(device=1, eventData=79),
    ]
    first, second = gpus.Nvml(library).read()
    assert first == Gpu(0, "GPU-0", "V100", 0.5, 1 << 20, 16 << 30)
    assert second.utilization == 0.0
    assert (second.xid_errors, second.ecc_errors) == ((79,), 3)


def test_a_driver_that_tells_no_xid_errors_is_read_all_the_same():
    library = Library()
    library.can_tell_events = False
    assert len(gpus.Nvml(library).read()) == 2


def test_busy_though_not_assigned_is_marked():
    read = gpus.Nvml(Library()).read()
    marks = [one.busy_unassigned for one in gpus.mark_strangers(read, ["GPU-0"])]
    assert marks == [False, True]
    assert not any(one.busy_unassigned for one in gpus.mark_strangers(read, ["0", "1"]))


def test_memory_above_the_base_line_is_not_released():
    library = Library()
    gauge = gpus.Nvml(library)
    base = gpus.measure(gauge.read(), ["0", "1"])
    assert not gpus.find_unreleased(gauge.read(), base)
    library.used[0] += 1 << 30
    reasons = gpus.find_unreleased(gauge.read(), base)
    assert reasons == {"GPU-0": "GPU-0 holds 1024 MiB more than before the start"}


def test_an_error_proves_no_release():
    library = Library()
    gauge = gpus.Nvml(library)
    base = gpus.measure(gauge.read(), ["0", "1"])
    library.lost.add(1)
    assert list(gpus.find_unreleased(gauge.read(), base)) == ["GPU-1"]
    assert list(gpus.find_unreleased([], base)) == ["GPU-0", "GPU-1"]
    # What was never told is not waited for.
    assert gpus.measure(gauge.read(), ["0", "1"]) == {"GPU-0": 1 << 20}


def test_a_gpu_that_can_be_opened_no_more_is_lost_and_one_that_never_could_is_not(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(gpus, "DEVICE", f"{tmp_path}/nvidia{{}}")
    library = Library()
    device = tmp_path / "nvidia7001"
    device.touch()
    gauge = gpus.Nvml(library)
    assert [one.lost_because for one in gauge.read()] == ["", ""]
    device.unlink()
    first, second = gauge.read()
    assert first.lost_because == ""
    assert second.lost_because == f"{device} cannot be opened: No such file or directory"
    assert gpus.find_lost([first, second], ["0", "GPU-1"]) == [
        f"GPU 1 (GPU-1): {second.lost_because}"
    ]
    assert gpus.find_lost([first, second], ["0"]) == []
    device.touch()
    assert [one.lost_because for one in gauge.read()] == ["", ""]


def test_ids_that_the_machine_does_not_have_are_found():
    assert gpus.find_unknown(gpus.Nvml(Library()).read(), ["0", "GPU-1", "2", "GPU-9"]) == [
        "2",
        "GPU-9",
    ]


def test_a_part_of_a_gpu_is_not_taken_for_one_that_is_missing():
    assert gpus.find_unknown(gpus.Nvml(Library()).read(), ["MIG-5f0c"]) == []


def test_without_nvml_it_says_why_and_knows_nothing():
    gauge = gpus.open_gauge()
    if not gauge.missing:
        pytest.skip("this machine has NVML")
    assert gauge.read() == []


@pytest.mark.parametrize(
    ("environment", "count"),
    [
        ({}, 0),
        ({"NVIDIA_VISIBLE_DEVICES": "all"}, 0),
        ({"NVIDIA_VISIBLE_DEVICES": "GPU-a,GPU-b"}, 2),
        ({"CUDA_VISIBLE_DEVICES": "3", "NVIDIA_VISIBLE_DEVICES": "0,1,2,3"}, 1),
        ({"CUDA_VISIBLE_DEVICES": "", "NVIDIA_VISIBLE_DEVICES": "0,1"}, 2),
    ],
)
def test_the_environment_may_tell_how_many_gpus_there_are(environment, count):
    assert gpus.count_named(environment) == count
