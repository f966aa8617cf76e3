"""A controller that slept while another one began: it wakes, does nothing any more, and ends."""

import os
import signal
import socket
import stat

import pytest

from dljob.client.backend import BackendError
from dljob.client.local.socket_client import SocketClient
from dljob.local.folders import Folders, StateError
from dljob.local.state_folder import lock_folder, make_folders, make_sockets
from tests.local.ups import going, replay

ONE = {"gpus": {"options": [1]}}


@pytest.mark.processes
def test_a_deposed_controller_leaves_the_socket_and_the_pods_of_its_successor_alone(root):
    state = root / "state"
    with going(state, "--virtual-gpus", 2) as deposed:
        deposed.submit(replay("long", root, iterations=100_000, faster=20.0, **ONE))
        deposed.until_phase("long", "Running")
        deposed.process.send_signal(signal.SIGSTOP)
        # As on a file system that forgets locks.
        (state / "lock").unlink()
        with going(state, "--virtual-gpus", 2) as successor:
            assert successor.until_phase("long", "Running")["status"].get("restarts", 0) == 0
            deposed.process.send_signal(signal.SIGCONT)
            assert deposed.process.wait(240.0) == 1
            assert "another controller has started" in deposed.log.read_text(encoding="utf-8")
            assert successor.backend.about()["pid"] == successor.process.pid
            assert successor("cancel", "--wait", "long").status == 0
            assert successor.end() == 0


def test_where_the_path_is_long_sockets_are_in_a_folder_that_no_other_user_knew(tmp_path):
    root = tmp_path / ("deep" * 30)
    folders = Folders(root)
    make_folders(folders)
    make_sockets(folders)
    sockets = folders.sockets
    try:
        assert stat.S_IMODE(sockets.lstat().st_mode) == 0o700
        assert Folders(root).sockets == sockets
        with socket.socket(socket.AF_UNIX) as door:
            door.bind(str(folders.socket))
        folders.socket.unlink()
        # It is kept by all who come, and replaced where it is not our own any more.
        make_sockets(folders)
        assert folders.sockets == sockets
        sockets.chmod(0o777)
        make_sockets(folders)
        assert folders.sockets != sockets
    finally:
        sockets.rmdir()
        folders.tidy()
    assert not folders.sockets.exists()


def test_only_the_start_that_has_the_lock_says_where_the_sockets_are(tmp_path):
    root = tmp_path / ("deep" * 30)
    make_folders(Folders(root))
    assert not os.path.lexists(Folders(root).link)
    held = lock_folder(Folders(root))
    sockets = Folders(root).sockets
    try:
        # As another one would be made by a start that found none before this one had made it.
        sockets.chmod(0o777)
        make_folders(Folders(root))
        with pytest.raises(StateError, match="dljob up runs there already"):
            lock_folder(Folders(root))
        assert Folders(root).sockets == sockets
    finally:
        os.close(held)
        sockets.rmdir()


def test_nothing_is_sent_to_a_socket_that_others_can_exchange(tmp_path):
    path = tmp_path / "dljob.sock"
    with socket.socket(socket.AF_UNIX) as door:
        door.bind(str(path))
        door.listen()
        tmp_path.chmod(0o777)
        with pytest.raises(BackendError, match="other users can write there"):
            SocketClient(path).ask("GET", ("about",))
