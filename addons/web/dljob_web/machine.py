"""
Serves the live page of a ``dljob up``.

:mod:`dljob_web.beside_up` starts this process, which ends with its ``dljob up`` and reads the record from the store
itself. ``dljob web`` serves the page of one user, and asks the controller at its socket alone, which knows the user by
the kernel.
"""

import asyncio
import json
import logging
import os
import platform
import secrets
import sys
import time
from collections.abc import Callable, Mapping
from io import TextIOWrapper
from ipaddress import ip_address
from logging.handlers import RotatingFileHandler
from pathlib import Path
from typing import Any, Final

from dljob.cli.output.streams import harmless_document
from dljob.cli.verbs.server.profiles import find_store, open_profiles
from dljob.client.backend import BackendError, Json
from dljob.client.local.local_backend import LocalBackend
from dljob.control.recording.composing import compose, losses, make_memory, read_entries
from dljob.core.recording.record import Header, Record, Source
from dljob.local.folders import Folders
from dljob_web.beside_up import ANYWHERE, LOG, LOOPBACK, Page
from dljob_web.guarding import Guard
from dljob_web.listening import listen, serve
from dljob_web.serving import Server
from dljob_web.sources import make_harmless, read_tail, show_plan, telling

NICE: Final = 5
"""The niceness: the controller and trainings come first where all cores are busy."""

TOKEN_BYTES: Final = 32

LARGEST_LOG: Final = 10 << 20
KEPT_LOGS: Final = 3

ROOTS: Final = (
    "futures are played with all jobs, and of jobs of other users you see only the GPUs; root gets futures from sudo"
    " dljob web"
)
"""The reason why users of a shared server get no futures."""


class LiveSource:
    """A ``dljob up``, as the page of its user asks it."""

    def __init__(self, folders: Folders, *, withheld: str = "") -> None:
        """``withheld`` is the reason why this user gets no futures, if there is one."""
        self._folders = folders
        self.withheld = withheld
        # Several threads ask at the same time, so each question has its own connection.
        self._backend = LocalBackend(folders.socket)

    def read_record(self, since: float) -> Record:
        with telling():
            return self._backend.read_record(since)

    def list_jobs(self) -> list[Json]:
        with telling():
            return make_harmless(self._backend.list_jobs().items)

    def explain(self, name: str) -> Json:
        with telling():
            answer: Json = harmless_document(self._backend.explain(name))
            return answer

    def list_nodes(self) -> list[Json]:
        with telling():
            return make_harmless(self._backend.list_nodes())

    def read_log(self, name: str, *, node: str, token: str) -> Json:  # noqa: ARG002 - all viewers are one user
        with telling():
            return read_tail(self._backend, name, node=node)

    def plan(self, documents: list[Json], token: str) -> Json:  # noqa: ARG002 - as above
        with telling():
            return show_plan(self._backend.preview(documents))

    def what_if(self, question: Any, *, is_gone: Callable[[], bool]) -> Json:
        with telling():
            answer: Json = harmless_document(self._backend.what_if(question, is_gone=is_gone))
            return answer


class StoreSource(LiveSource):
    """The same, with the record from the store itself, so that viewers cost the controller nothing."""

    def __init__(self, folders: Folders) -> None:
        super().__init__(folders)
        self._decode = make_memory()

    def read_record(self, since: float) -> Record:
        with telling():
            # Before the store is opened, so that the controller opens it first.
            about = self._backend.about()
            with open_profiles(find_store(self._backend, self._folders), None) as store:
                kept = store.rows()
            documents = self._backend.list_jobs().items if any(losses(kept)) else []
        header = Header(
            source=Source.MACHINE,
            since=since,
            until=time.time(),
            policy=about["policy"],
            title=platform.node(),
        )
        return compose(kept, read_entries(documents), header=header, decode=self._decode)


class Log(RotatingFileHandler):
    """The log of the page, which also gets what is written to standard error."""

    def _open(self) -> TextIOWrapper:
        stream = super()._open()
        os.dup2(stream.fileno(), sys.stderr.fileno())
        return stream


def serve_user(folders: Folders, *, port: int, or_else: str, opened: Callable[[str], None]) -> None:
    """
    Serve the page to the user of this process until Ctrl-C; ``opened`` takes the address with the token.

    Raises :class:`BackendError` if no ``dljob up`` answers, or if the port cannot be opened.
    """
    os.nice(NICE)
    backend = LocalBackend(folders.socket, or_else=or_else)
    backend.about()
    source = LiveSource(folders, withheld=ROOTS if backend.home and os.getuid() else "")
    token = secrets.token_urlsafe(TOKEN_BYTES)
    try:
        door = listen(LOOPBACK, port)
    except OSError as error:
        raise BackendError(
            f"port {port} cannot be opened ({error.strerror}); leave --port out for a free one"
        ) from error
    with door:
        opened(Page(ANYWHERE).url(door.getsockname()[1], token))
        application = Server(source).application(Guard(token, loopback=True))
        asyncio.run(serve(application, door, until=asyncio.Event().wait))


def main(root: str, host: str, port: str, *names: str) -> None:
    """Serve until standard input is closed; browsers may use one of these host names."""
    os.nice(NICE)
    logging.basicConfig(
        level=logging.INFO,
        format="%(asctime)s %(levelname)s %(name)s: %(message)s",
        handlers=[Log(Path(root) / LOG, maxBytes=LARGEST_LOG, backupCount=KEPT_LOGS)],
    )
    token = secrets.token_urlsafe(TOKEN_BYTES)
    try:
        door = listen(host, int(port))
    except OSError as error:
        _answer({"problem": error.strerror or str(error)})
        return
    with door:
        # The port listens already, so that a browser which
        # is quicker than this process waits in its backlog.
        _answer({"port": door.getsockname()[1], "token": token})
        loopback = ip_address(door.getsockname()[0]).is_loopback
        guard = Guard(token, loopback=loopback, names=names if loopback else (*names, host))
        application = Server(StoreSource(Folders(Path(root)))).application(guard)
        asyncio.run(serve(application, door, until=_wait_for_end))


def _answer(document: Mapping[str, object]) -> None:
    """Report the address to the parent process."""
    sys.stdout.write(json.dumps(document) + "\n")
    sys.stdout.flush()


async def _wait_for_end() -> None:
    """Return when the controller has closed its end or has died."""
    ended = asyncio.Event()
    loop = asyncio.get_running_loop()
    # The controller writes nothing, so readable means closed, also after a kill.
    loop.add_reader(sys.stdin.fileno(), ended.set)
    await ended.wait()
    loop.remove_reader(sys.stdin.fileno())


if __name__ == "__main__":
    main(*sys.argv[1:])
