"""Which GPUs a dljob up takes, and with whom it shares the machine."""

import asyncio
import errno
import fcntl
import os
import struct
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from dljob.local.environments import name_user
from dljob.local.files.file_threads import FileThreads
from dljob.local.gpus import gpu_choices, gpu_locks
from dljob.local.gpus.devices import OwnUse, RealGpus, find_foreign
from dljob.local.gpus.gpu_choices import GpuChoiceError
from dljob.local.gpus.gpu_locks import GpuLock
from dljob_wire.occupancy import BUSY_BYTES, Usage
from tests.ctl.running import run_apart
from tests.local.gpus import StandIn, ToldDriver, devices
from tests.local.ups import going, replay
from tests.loops import after_turns

real = pytest.mark.processes

LONGEST_S = 240.0
"""No law of ours: after this time something hangs."""


# --- which


def chosen(text):
    return [device.index for device in gpu_choices.choose(gpu_choices.parse(text), devices(4))]


def test_gpus_are_chosen_by_number_range_and_uuid():
    for text, numbers in {
        "0,2-3": [0, 2, 3],
        "3,0": [0, 3],
        "2,": [2],
        "2-2": [2],
        "GPU-10-aa": [1],
        "GPU-3,0": [0, 3],
    }.items():
        assert chosen(text) == numbers, text


def test_wrong_choice_is_refused_with_an_example():
    none = "7: there is no such GPU; the GPUs of this machine are 0 (GPU-00-aa), 1 (GPU-10-aa)"
    for text, why in {
        **dict.fromkeys(("", "0,,1", "x"), "names no GPUs"),
        **dict.fromkeys(("3-1", "0-99999999999999"), "not a range"),
        "1,0-2": "names GPU 1 twice",
        "0,GPU-00": "is named twice",
        "7": none,
        "GPU-": "several GPUs begin like that",
        "MIG-1": "a part of a GPU",
    }.items():
        with pytest.raises(GpuChoiceError) as refused:
            chosen(text)
        assert why in str(refused.value), text


def test_the_visible_devices_of_cuda_are_honoured():
    there = devices(4)
    assert gpu_choices.visible({}, there) is None
    chosen = gpu_choices.visible({"CUDA_VISIBLE_DEVICES": "3,GPU-1"}, there)
    assert chosen == (there[1], there[3])
    with pytest.raises(GpuChoiceError, match=r"CUDA_VISIBLE_DEVICES: .*unset it, or give --gpus"):
        gpu_choices.visible({"CUDA_VISIBLE_DEVICES": ""}, there)


def test_numbers_that_cuda_counts_by_speed_are_refused_where_gpus_differ():
    there = (*devices(1), replace(devices(2)[1], model="T4"))
    with pytest.raises(GpuChoiceError, match="set CUDA_DEVICE_ORDER=PCI_BUS_ID"):
        gpu_choices.visible({"CUDA_VISIBLE_DEVICES": "1"}, there)
    ordered = {"CUDA_VISIBLE_DEVICES": "1", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
    assert gpu_choices.visible(ordered, there) == (there[1],)
    assert gpu_choices.visible({"CUDA_VISIBLE_DEVICES": "GPU-1"}, there) == (there[1],)


# --- one lock for each


@pytest.fixture(params=["a device file", "a file in the folder of locks"])
def device(request, tmp_path):
    (found,) = devices(1, tmp_path if request.param == "a device file" else None)
    return found


def lock_of(device, tmp_path, state):
    return GpuLock(device, tmp_path / state, folder=tmp_path)


def test_one_server_at_a_time_has_a_gpu(device, tmp_path):
    first, second = (lock_of(device, tmp_path, name) for name in ("ours", "theirs"))
    assert first.attempt() == ""
    assert first.attempt() == ""
    me = f"process {os.getpid()} of {name_user(os.getuid())}"
    assert second.attempt().startswith(f"another dljob up has it ({me}, ")
    first.close()
    assert second.attempt() == ""
    second.close()


@pytest.mark.story
@real
def test_sidecars_keep_a_gpu_from_others_and_never_from_their_own_next_server(device, tmp_path):
    first = lock_of(device, tmp_path, "ours")
    assert first.lend() is None
    assert first.attempt() == ""
    lent, taken_back = first.lend(), first.lend()
    sidecar = subprocess.Popen(
        [sys.executable, "-c", "input()"], stdin=subprocess.PIPE, pass_fds=[lent]
    )
    try:
        os.close(lent)
        # The SideCar of another user gives up its lock; that of this one stays.
        fcntl.fcntl(
            taken_back, fcntl.F_OFD_SETLK, struct.pack("hhqqi4x", fcntl.F_UNLCK, 0, 0, 0, 0)
        )
        os.close(taken_back)
        # The server dies, and its SideCar lives.
        first.close()
        other, again = lock_of(device, tmp_path, "theirs"), lock_of(device, tmp_path, "ours")
        assert other.attempt() == "jobs of another dljob up, which has ended, still have it"
        assert again.attempt() == ""
        assert other.attempt().startswith("another dljob up has it")
        again.close()
    finally:
        sidecar.communicate(b"\n", timeout=240.0)
    assert other.attempt() == ""
    other.close()


def test_a_lock_is_no_way_to_another_file(tmp_path):
    (device,) = devices(1)
    secret = tmp_path / "secret"
    secret.write_text("as it was")
    (tmp_path / f"dljob-{device.uuid}.lock").symlink_to(secret)
    assert "cannot be opened" in lock_of(device, tmp_path, "ours").attempt()
    assert secret.read_text() == "as it was"


@pytest.mark.parametrize("step", ["_is_locked", "_lock_byte"])
def test_a_lock_that_cannot_be_taken_for_want_of_files_is_tried_again(
    device, tmp_path, monkeypatch, step
):
    def fail(*_, **__):
        raise OSError(errno.EMFILE, "Too many open files")

    lock, opened = lock_of(device, tmp_path, "ours"), len([*Path("/proc/self/fd").iterdir()])
    with monkeypatch.context() as patched:
        patched.setattr(gpu_locks, step, fail)
        assert "cannot be locked (Too many open files)" in lock.attempt()
    assert len([*Path("/proc/self/fd").iterdir()]) == opened
    assert lock.attempt() == ""
    lock.close()


@pytest.mark.skipif(os.getuid() != 0, reason="only root can make device files and be another user")
@real
def test_the_lock_of_a_device_file_holds_between_users(tmp_path, passable):
    path = passable / "nvidia0"
    os.mknod(path, 0o20666, os.makedev(1, 3))
    path.chmod(0o666)
    held = subprocess.Popen(
        ["flock", "--exclusive", "--no-fork", str(path), "sh", "-c", "echo got; read end"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        user="nobody",
    )
    try:
        assert held.stdout is not None
        assert held.stdout.readline() == b"got\n"
        lock = GpuLock(replace(devices(1)[0], path=str(path)), tmp_path / "ours")
        assert lock.attempt().startswith(f"another dljob up has it (process {held.pid} of nobody")
    finally:
        held.communicate(b"\n", timeout=240.0)
    assert lock.attempt() == ""
    lock.close()


# --- processes of others

TREE = {10: 5, 11: 10, 5: 1, 20: 1, 21: 20}


def test_processes_that_descend_from_no_sidecar_are_foreign():
    others = "512 MiB of it are in use by others"
    for usage, foreign in (
        (Usage(), ""),
        (Usage((5, 10, 11)), ""),
        (Usage((20,)), "process 20 computes on it"),
        (Usage((11, 20, 21)), "process 20 (and 1 more) computes on it"),
        (Usage((), BUSY_BYTES), ""),
        (Usage((), BUSY_BYTES + 1), others),
        (Usage((11,), BUSY_BYTES + 1), ""),
        # 30 has ended since the reading, and may have been ours.
        (Usage((30,)), ""),
        (Usage((20, 30)), "process 20 computes on it"),
        (Usage((30,), BUSY_BYTES + 1), others),
    ):
        found = find_foreign(
            {"a": usage},
            OwnUse({5}, set()),
            parents=lambda pid: TREE.get(pid, 0),
            exists=lambda pid: pid in TREE,
            describe=lambda pid: f"process {pid}",
        )
        assert found == ({"a": foreign} if foreign else {}), usage
    used = {"a": Usage((), 4 * BUSY_BYTES)}
    assert find_foreign(used, OwnUse((), {"a"})) == {}, (
        "memory of a GPU that our jobs have is theirs"
    )


def reasons(gpus):
    return {gpu.index: gpu.unavailable_because for gpu in gpus.nodes()[0].gpus}


@pytest.fixture
def there(tmp_path):
    return devices(3, tmp_path)


def box_of(there, chosen=None):
    """The GPUs of a machine; nothing runs there but what a test says."""
    gpus = there if chosen is None else chosen
    others = tuple(each for each in there if each not in gpus)
    return RealGpus(ToldDriver(there), gpus, name="box", others=others)


def test_a_gpu_that_others_use_is_out_until_it_is_seen_empty(there):
    gpus, unused = box_of(there[:2]), OwnUse((), ())
    gpus.judge({there[0].uuid: Usage((1,)), there[1].uuid: Usage()}, unused)
    assert reasons(gpus)[0].startswith("process 1 of root")
    assert reasons(gpus)[1] == ""
    # A GPU that does not answer is not seen empty.
    gpus.judge({there[1].uuid: Usage()}, unused)
    assert reasons(gpus)[0]
    gpus.judge({there[0].uuid: Usage(), there[1].uuid: Usage()}, unused)
    assert reasons(gpus) == {0: "", 1: ""}


@pytest.mark.parametrize("ended", [(), (2**22 + 1,)], ids=["of no process", "of one that ended"])
def test_memory_that_no_process_explains_counts_when_it_is_seen_twice(there, ended):
    gpus = box_of(there[:1])
    gpus.judge({there[0].uuid: Usage(ended, 3 << 30)}, OwnUse((), ()))
    assert reasons(gpus) == {0: ""}
    gpus.judge({there[0].uuid: Usage((), 3 << 30)}, OwnUse((), ()))
    assert reasons(gpus) == {0: "3,072 MiB of it are in use by others"}


def test_gpus_that_were_not_chosen_are_shown_only_while_jobs_train_there(tmp_path, there):
    gpus = box_of(there, there[:1])
    assert reasons(gpus) == {0: ""}
    gpus.hold(tmp_path / "state", {2})
    assert reasons(gpus) == {0: "", 2: "it is not among the GPUs of this start"}
    gpus.close()


def test_gpus_keep_their_state_while_our_processes_cannot_be_listed(there, caplog):
    gpus = box_of(there[:1])
    stranger = {there[0].uuid: Usage((1,))}

    def fail():
        raise OSError(errno.EMFILE, "Too many open files")

    for _look in range(2):
        gpus._take(stranger, fail, lambda: None)
    assert reasons(gpus) == {0: ""}
    assert gpus.known.is_set()
    assert caplog.text.count("Too many open files") == 1
    gpus._take(stranger, lambda: OwnUse((), ()), lambda: None)
    assert reasons(gpus)[0].startswith("process 1 of root")


@pytest.mark.parametrize("turns", range(6))
def test_a_watch_that_is_cancelled_as_an_answer_comes_ends(there, monkeypatch, turns):
    gpus = box_of(there[:1])
    answers: list[object] = []
    answer = FileThreads._return

    async def story():
        watching = asyncio.create_task(gpus.watch(lambda: OwnUse((), ()), lambda: None))

        def answer_and_cancel(threads, asked, settle):
            if not answers:
                after_turns(turns, watching.cancel)
            answers.append(asked)
            answer(threads, asked, settle)

        monkeypatch.setattr(FileThreads, "_return", answer_and_cancel)
        await asyncio.wait({watching}, timeout=LONGEST_S)
        return watching.cancelled()

    assert asyncio.run(story())


# --- the whole of it, on a machine whose NVML is a stand-in


@pytest.fixture
def box(tmp_path, monkeypatch):
    made = StandIn(tmp_path, count=4)
    for name, value in made.environment.items():
        monkeypatch.setenv(name, value)
    return made


def rows(up):
    return {gpu["index"]: gpu for gpu in up.backend.list_nodes()[0]["gpus"]}


@pytest.mark.story
@real
def test_jobs_keep_off_a_gpu_that_a_foreign_process_uses(root, box):
    stranger = subprocess.Popen(["sleep", "1000"])
    try:
        box.let_compute((2, stranger.pid))
        with going(root / "state", "--gpus", "0,2-3") as up:
            up.until(lambda: 2 in rows(up) and rows(up)[2].get("reason"))
            assert sorted(rows(up)) == [0, 2, 3]
            reason = f"process {stranger.pid} of {name_user(os.getuid())}, sleep computes on it"
            assert rows(up)[2]["reason"] == reason
            assert reason in up("gpu", "list").stdout
            up.submit(replay("wide", root, iterations=10**6, faster=1.0, gpus={"options": [3]}))
            up.until(lambda: reason in up.backend.explain("wide")["message"])
            assert f"/2 is out of service: {reason}" in up.log.read_text()
            box.let_compute()
            job = up.until_phase("wide", "Running")
            assert job["status"]["allocation"]["nodes"][0]["gpuIds"] == [0, 2, 3]
            assert "/2 is back in service" in up.log.read_text()
            assert up("cancel", "--wait", "wide").status == 0
            assert up.end() == 0
    finally:
        stranger.kill()
        stranger.wait(LONGEST_S)


@real
def test_a_plain_number_is_refused_where_gpus_of_the_machine_could_be_meant(root, box):
    refused = run_apart("up", "--gpus", 2, "--state", root / "state")
    assert refused.status == 2
    assert "--gpus 2: the 4 GPUs here are named, not counted" in refused.stderr
    assert "--virtual-gpus 2" in refused.stderr
