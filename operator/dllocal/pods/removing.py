"""
Folders of jobs that are over, removed without keeping the controller from its work.

:mod:`dllocal.pods.processes` calls it when a job is forgotten. A folder of checkpoints can take minutes to remove, so
it only gets another name at once, beside it and such as no job has, and a thread of its own removes what has
that name. Then a job of the same name begins with nothing, also where the removal fails. What is left of
it when the controller ends is removed after the next start.
"""

import contextlib
import logging
import os
import queue
import secrets
import shutil
import threading
from collections.abc import Callable, Iterable
from pathlib import Path

log = logging.getLogger(__name__)

PREFIX = ".removed-"
"""Names of jobs and users do not begin like this."""

Complain = Callable[[str, str], None]
"""Takes the name of a job and what could not be removed; called by any thread."""


def to_the_log(job: str, message: str) -> None:
    """Complain where no user listens."""
    log.warning("%s: %s", job, message)


class Remover:
    """One for the life of a controller."""

    def __init__(self, complain: Complain = to_the_log) -> None:
        self._complain = complain
        self._waiting: queue.SimpleQueue[tuple[str, Path]] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def remove(self, job: str, folder: Path) -> None:
        """Let a folder of a job be gone when this returns, and its contents soon after."""
        unnamed = folder.with_name(f"{PREFIX}{secrets.token_hex(8)}")
        try:
            # The folder around it is the server's, so that no user can exchange what gets this name.
            folder.rename(unnamed)
        except FileNotFoundError:
            return
        except OSError as error:
            self._tell(job, folder, error)
            return
        self._put(job, unnamed)

    def sweep(self, bases: Iterable[Path]) -> None:
        """Remove what a former controller has not come to."""
        for base in bases:
            with contextlib.suppress(OSError):
                for path in base.glob(f"{PREFIX}*"):
                    self._put("a former job", path)

    def _put(self, job: str, path: Path) -> None:
        self._waiting.put((job, path))
        if self._thread is None:
            # A daemon, so that no controller has to wait for it to end.
            self._thread = threading.Thread(target=self._work, name="removing", daemon=True)
            self._thread.start()

    def _work(self) -> None:
        while True:
            job, path = self._waiting.get()
            try:
                _remove(path)
            except OSError as error:
                self._tell(job, path, error)

    def _tell(self, job: str, path: Path, error: OSError) -> None:
        what = error.filename or path
        message = f"{path} cannot be removed ({what}: {error.strerror}); remove it by hand"
        self._complain(job, message)


def _remove(path: Path) -> None:
    """Remove all that can be removed; raises the first error."""
    if path.is_symlink():
        path.unlink(missing_ok=True)
        return
    # It follows no link that a user makes, also not one made meanwhile.
    assert shutil.rmtree.avoids_symlink_attacks
    try:
        shutil.rmtree(path)
    except OSError:
        shutil.rmtree(path, ignore_errors=True)
        if os.path.lexists(path):
            raise
