"""
Folders of jobs that are over, removed without keeping the controller from its work.

:mod:`dllocal.pods.processes` calls it when a job is forgotten. A folder of checkpoints can take minutes to remove, so
it only gets another name at once, beside it and such as no job has, and a thread of its own removes what has
that name. Then a job of the same name begins with nothing, also where the removal fails. If the controller ends
before that, the rest is removed after the next start; the name has a mark of the server, because
other servers may have such folders beside it, as in ``/dev/shm``.
"""

import contextlib
import logging
import os
import queue
import secrets
import threading
from collections.abc import Callable, Iterable
from pathlib import Path

from dllocal.files.tree_removal import remove_tree

log = logging.getLogger(__name__)

PREFIX = ".removed-"
"""Names of jobs and users do not begin like this."""

ROOT = 0

Complain = Callable[[str, str], None]
"""Takes the name of a job and what could not be removed; called by any thread."""


def to_the_log(job: str, message: str) -> None:
    """Complain where no user listens."""
    log.warning("%s: %s", job, message)


class Remover:
    """One for the life of a controller."""

    def __init__(self, complain: Complain = to_the_log, *, mark: str) -> None:
        """``mark`` is part of a file's name, and another one for each server."""
        self._complain = complain
        self._mark = mark
        self._waiting: queue.SimpleQueue[tuple[str, Path]] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def remove(self, job: str, folder: Path) -> None:
        """Let a folder of a job be gone when this returns, and its contents soon after."""
        unnamed = folder.with_name(f"{PREFIX}{self._mark}-{secrets.token_hex(8)}")
        try:
            # The folder around it is the server's, so that no user can exchange what gets this name. In /dev/shm the
            # user of the job can, and then loses a folder of their own.
            folder.rename(unnamed)
        except FileNotFoundError:
            return
        except OSError as error:
            self._tell(job, folder, error)
            return
        self._put(job, unnamed)

    def sweep(self, bases: Iterable[Path]) -> None:
        """Remove what a former controller has not come to, from folders of this server alone."""
        for base in bases:
            self._sweep(base, f"{PREFIX}*")

    def sweep_own(self, base: Path) -> None:
        """Remove the same from a folder that other servers and users use, too."""
        self._sweep(base, f"{PREFIX}{self._mark}-*")

    def _sweep(self, base: Path, pattern: str) -> None:
        found: list[Path] = []
        with contextlib.suppress(OSError):
            found += base.glob(pattern)
        for path in found:
            # The thread, or another server, may have removed it meanwhile; the others are still to be removed.
            with contextlib.suppress(OSError):
                if os.geteuid() in (ROOT, path.lstat().st_uid):
                    self._put("a former job", path)

    def _put(self, job: str, path: Path) -> None:
        # Called on the event loop alone, so that two calls never start two threads.
        self._waiting.put((job, path))
        if self._thread is None:
            # A daemon, so that no controller has to wait for it to end.
            self._thread = threading.Thread(target=self._work, name="removing", daemon=True)
            self._thread.start()

    def _work(self) -> None:
        while True:
            job, path = self._waiting.get()
            # The thread goes on after any error, because no other one removes the folders that come later.
            try:
                self._attempt(job, path)
            except Exception:
                log.exception("%s: an error in the removal of %s was not reported", job, path)

    def _attempt(self, job: str, path: Path) -> None:
        try:
            _remove(path)
        except Exception as error:  # noqa: BLE001 - users read of it
            self._tell(job, path, error)

    def _tell(self, job: str, path: Path, error: Exception) -> None:
        if isinstance(error, OSError):
            why = f"{error.filename or path}: {error.strerror}"
        else:
            why = f"{type(error).__name__}: {error}"
        self._complain(job, f"{path} cannot be removed ({why}); remove it by hand")


def _remove(path: Path) -> None:
    """Remove all that can be removed; raises the first error."""
    if path.is_symlink():
        path.unlink(missing_ok=True)
        return
    error = remove_tree(path)
    if error is None:
        return
    # Once more, because a process of the job may have written there in its last moments.
    remove_tree(path)
    if os.path.lexists(path):
        raise error
