"""
Makes sure that none of the job's processes outlives the SideCar.

The command calls it first, before anything else runs in the process. In a container the
SideCar is PID 1, and the kernel kills everything else when PID 1 ends; nothing needs to be done.
On a plain machine the process that was started becomes the *keeper*, and the SideCar its child:

- Where namespaces are allowed (to root, and on most machines to every user by a user namespace),
  the SideCar is PID 1 of a PID namespace of its own, and the kernel gives the same guarantee as in
  a container. If the keeper dies, the kernel kills the SideCar and with it all the rest.
- Elsewhere the keeper is a subreaper. When the SideCar dies, everything that it had started
  becomes the keeper's, which kills it and ends only when nothing is left. If the keeper dies, the
  SideCar is sent SIGTERM and stops the job in order.

The second way has a gap: when both are killed at the same moment, the training processes
themselves die (the kernel kills the children of a SideCar that dies), but a process that they have started
goes on until the next SideCar of the job ends it (:mod:`dljob_sidecar.processes.leftovers`), unless it hides from
that one as well, by another environment and by closing all descriptors. And what another
daemon was asked to start, with a clean environment, was never ours.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
import time
from collections.abc import Callable

from dljob_sidecar.linux import kernel
from dljob_sidecar.linux.family import (
    PROC,
    descend,
    kill_group,
    scan,
)
from dljob_sidecar.linux.kernel import (
    become_subreaper,
    die_with_parent,
    give_back_memory,
    libc,
    send,
)

CLONE_NEWNS = 0x00020000
CLONE_NEWUSER = 0x10000000
CLONE_NEWPID = 0x20000000
CAPABILITY_VERSION_3 = 0x20080522
MS_NOSUID, MS_NODEV, MS_NOEXEC = 2, 4, 8
MS_REC, MS_SLAVE = 0x4000, 0x80000

FORWARDED = (
    signal.SIGTERM,
    signal.SIGINT,
    signal.SIGHUP,
    signal.SIGQUIT,
    signal.SIGUSR1,
    signal.SIGUSR2,
    signal.SIGCONT,
    signal.SIGWINCH,
)
"""The signals that the keeper passes on to the SideCar."""


def unblock_signals() -> None:
    signal.pthread_sigmask(signal.SIG_UNBLOCK, FORWARDED)


def keep(run: Callable[[], int], *, isolate: bool = True) -> int:
    """
    Run the SideCar such that no process outlives it; return its exit status.

    ``run`` begins with the signals blocked, because PID 1 never receives signals without a handler.
    ``run`` calls :func:`unblock_signals` after it has installed its handlers. With ``isolate``
    false, the keeper makes no namespace.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, FORWARDED)
    if os.getpid() == 1:
        return run()
    become_subreaper()
    # This descriptor still shows the machine after the namespace has its own /proc.
    kernel.outer_proc = os.open(PROC, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    in_namespace = isolate and is_isolation_possible()
    if in_namespace:
        unshare()
    keeper = os.getpid()
    child = os.fork()
    if child == 0:
        _become_sidecar(run, keeper, in_namespace=in_namespace)
    give_back_memory()
    status = wait_for(child)
    kill_all()
    return exit_like(status)


def _become_sidecar(run: Callable[[], int], keeper: int, *, in_namespace: bool) -> None:
    """Run the SideCar as the child; never return, even on an exception."""
    status = 70
    try:
        die_with_parent(signal.SIGKILL if in_namespace else signal.SIGTERM)
        # Inside a new PID namespace, the parent's id is always 0.
        if not in_namespace and os.getppid() != keeper:
            return
        if in_namespace:
            mount_proc()
            drop_capabilities()
        status = run()
    except SystemExit as error:
        status = error.code if isinstance(error.code, int) else int(error.code is not None)
    except BaseException:  # noqa: BLE001 - two processes would go on from here
        sys.excepthook(*sys.exc_info())
    finally:
        with contextlib.suppress(OSError, ValueError):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(status & 0xFF)


# --- a namespace ----------------------------------------------------------------------------


def unshare() -> None:
    """Make the next child PID 1 of a new namespace; raise OSError where that is not allowed."""
    user, group = os.geteuid(), os.getegid()
    flags = CLONE_NEWPID | CLONE_NEWNS
    if user != 0:
        flags |= CLONE_NEWUSER
    _check(libc.unshare(flags))
    if user != 0:
        # Keep the user ids: only one user and one group exist in the namespace.
        _write("/proc/self/setgroups", "deny")
        _write("/proc/self/uid_map", f"{user} {user} 1")
        _write("/proc/self/gid_map", f"{group} {group} 1")


def _write(path: str, text: str) -> None:
    with open(path, "w", encoding="ascii") as file:  # noqa: PTH123 - see dljob_sidecar.linux.kernel
        file.write(text)


def mount_proc() -> None:
    """Mount a /proc that shows only the processes of the namespace."""
    # Later mounts outside, such as data sets, must still appear here.
    _check(libc.mount(b"none", b"/", None, MS_REC | MS_SLAVE, None))
    _check(libc.mount(b"proc", b"/proc", b"proc", MS_NOSUID | MS_NODEV | MS_NOEXEC, None))


def drop_capabilities() -> None:
    """
    Give up the powers of the maker of a user namespace; root keeps its own.

    The ranks have none of them, and the kernel shows the open files of a process only to those with as many powers: the ranks
    could not open the memory in which they agree.
    """
    if os.geteuid() != 0:
        _check(libc.capset(CAPABILITY_VERSION_3.to_bytes(4, sys.byteorder) + bytes(4), bytes(24)))


def _check(result: int) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def is_isolation_possible() -> bool:
    """Try namespaces in a short-lived process, because a partial namespace cannot be left."""
    prober = os.fork()
    if prober == 0:
        with contextlib.suppress(OSError):
            unshare()
            # The first child is process 1 of the new namespace, and mounts its /proc.
            inner = os.fork()
            if inner == 0:
                mount_proc()
                os._exit(0)
            os._exit(os.waitpid(inner, 0)[1] != 0)
        os._exit(1)
    return os.waitpid(prober, 0)[1] == 0


# --- the keeper -----------------------------------------------------------------------------


def wait_for(child: int) -> int:
    """
    Collect ended processes and forward signals until the child ends; return the child's status.

    The signals stay blocked and are waited for. A handler could miss a signal that arrives right
    before a blocking call: Python runs handlers only between its own steps, so the signal would
    wait for the end of the child, which waits for the signal.
    """
    signal.signal(signal.SIGCHLD, lambda *_: None)
    awaited = {signal.SIGCHLD, *FORWARDED}
    signal.pthread_sigmask(signal.SIG_BLOCK, awaited)
    while True:
        # A child that ended before SIGCHLD was blocked sends none any more.
        status = collect(child)
        if status is not None:
            return status
        signum = signal.sigwait(awaited)
        if signum != signal.SIGCHLD:
            send(child, signum)


def collect(child: int) -> int | None:
    """Collect all ended processes; return the child's status if the child is among them."""
    found = None
    with contextlib.suppress(ChildProcessError):
        while True:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == child:
                found = status
            if pid == 0:
                break
    return found


def kill_all() -> None:
    """
    Kill all descendants until the kernel reports that no children are left.

    That is a proof: every descendant of a subreaper has a living ancestor among its children.
    """
    pause = 0.001
    while True:
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pause = 0.001
            kill_descendants()
            time.sleep(pause)
            pause = min(2 * pause, 0.1)
            continue
        return


def kill_descendants() -> None:
    processes = scan()
    ours = descend(processes, [os.getpid()]) - {os.getpid()}
    for group in {processes[pid].group for pid in ours} - {os.getpgrp()}:
        kill_group(group)
    for pid in ours:
        send(pid, signal.SIGKILL)


def exit_like(status: int) -> int:
    """Return the exit status of the child; if a signal ended the child, end by the same signal."""
    if os.WIFSIGNALED(status):
        signum = os.WTERMSIG(status)
        if signum != signal.SIGKILL:
            signal.signal(signum, signal.SIG_DFL)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signum})
        os.kill(os.getpid(), signum)
    return os.WEXITSTATUS(status)
