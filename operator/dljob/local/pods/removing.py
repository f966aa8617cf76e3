"""
Removes the folders of forgotten jobs in a thread, because a folder of checkpoints can take minutes.

A folder is first renamed to a name that no job has, so that a job of the same name begins with nothing even if the
removal fails. The next controller removes the rest. The new name contains a mark of the server, because several servers
have such folders in ``/dev/shm``.
"""

import contextlib
import logging
import os
import queue
import secrets
import threading
from collections.abc import Callable, Iterable
from pathlib import Path

from dljob.local.files.tree_removal import remove_tree

log = logging.getLogger(__name__)

PREFIX = ".removed-"
"""Names of jobs and users do not begin like this."""

ROOT = 0

Complain = Callable[[str, str], None]
"""Reports files of a job that cannot be removed; called from any thread."""


def to_the_log(job: str, message: str) -> None:
    log.warning("%s: %s", job, message)


class Remover:
    def __init__(self, complain: Complain = to_the_log, *, mark: str) -> None:
        """``mark`` distinguishes servers in the names of files."""
        self._complain = complain
        self._mark = mark
        self._waiting: queue.SimpleQueue[tuple[str, Path]] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def remove(self, job: str, folder: Path) -> None:
        """Rename a folder, and remove it soon after."""
        unnamed = folder.with_name(f"{PREFIX}{self._mark}-{secrets.token_hex(8)}")
        try:
            # No user can replace a folder in a folder of the server. In /dev/shm the job's user can, and then loses
            # another folder of their own.
            folder.rename(unnamed)
        except FileNotFoundError:
            return
        except OSError as error:
            self._report(job, folder, error=error)
            return
        self._put(job, unnamed)

    def sweep(self, bases: Iterable[Path], *, are_shared: bool = False) -> None:
        """Remove the leftovers of an earlier controller; other servers write into shared folders, too."""
        found: list[Path] = []
        for base in bases:
            with contextlib.suppress(OSError):
                found += base.glob(f"{PREFIX}{self._mark}-*" if are_shared else f"{PREFIX}*")
        for path in found:
            # The thread or another server may have removed it meanwhile.
            with contextlib.suppress(OSError):
                if os.geteuid() in (ROOT, path.lstat().st_uid):
                    self._put("a former job", path)

    def _put(self, job: str, path: Path) -> None:
        # Called on the event loop alone.
        self._waiting.put((job, path))
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="removing", daemon=True)
            self._thread.start()

    def _work(self) -> None:
        while True:
            job, path = self._waiting.get()
            try:
                self._attempt(job, path)
            except Exception:
                log.exception("%s: an error in the removal of %s was not reported", job, path)

    def _attempt(self, job: str, path: Path) -> None:
        try:
            _remove(path)
        except Exception as error:  # noqa: BLE001 - users read of it
            self._report(job, path, error=error)

    def _report(self, job: str, path: Path, *, error: Exception) -> None:
        if isinstance(error, OSError):
            why = f"{error.filename or path}: {error.strerror}"
        else:
            why = f"{type(error).__name__}: {error}"
        self._complain(job, f"{path} cannot be removed ({why}); remove it by hand")


def _remove(path: Path) -> None:
    if path.is_symlink():
        path.unlink(missing_ok=True)
        return
    error = remove_tree(path)
    if error is None:
        return
    # Try again, because a process of the job may just have written there.
    remove_tree(path)
    if os.path.lexists(path):
        raise error
