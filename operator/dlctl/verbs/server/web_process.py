"""
The process that serves the live page of a ``dljob up``: started by :mod:`dlctl.verbs.server.web`, ends with it.

The record is read from the store itself. For all else it asks the controller at its socket, as the verbs do.
"""

import asyncio
import json
import os
import platform
import secrets
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from ipaddress import ip_address
from pathlib import Path
from typing import Final

from dlcontrol.recording.composing import Kept, compose
from dlcontrol.situation import status_documents
from dlcontrol.situation.ports import Entry
from dlcore.documents import jobfile
from dlcore.recording.record import Header, Record, Source
from dlctl.backends.backend import Away, BackendError, Json, NotThere
from dlctl.backends.local.local_backend import LocalBackend
from dlctl.output.streams import harmless_document
from dlctl.verbs.server.profiles import find_store, open_profiles
from dllocal.folders import Folders
from dlweb.guarding import Guard
from dlweb.serving import Server, SourceError, listen, serve

NICE: Final = 5
"""Where all cores are busy, the controller and what trains come first."""

TOKEN_BYTES: Final = 32

LONGEST_QUESTION_S: Final = 180.0
"""After this time a question about futures is given up; its process has a limit of CPU time, too."""


class LiveSource:
    """A ``dljob up``, as the page asks it."""

    def __init__(self, root: Path) -> None:
        self._folders = Folders(root)
        self._backend = LocalBackend(self._folders.socket)

    def read_record(self, since: float) -> Record:
        with _telling():
            # Before the store is opened: the controller is to be the first to do so.
            about = self._backend.about()
            with open_profiles(find_store(self._backend, self._folders), None) as store:
                kept = Kept.read(store)
            entries = list(self._iter_entries()) if any(kept.losses) else []
        header = Header(
            source=Source.MACHINE,
            since=since,
            until=time.time(),
            policy=about["policy"],
            title=platform.node(),
        )
        return compose(kept, entries, header)

    def list_jobs(self) -> list[Json]:
        with _telling():
            return _harmless(self._backend.list_jobs().items)

    def explain(self, name: str) -> Json:
        with _telling():
            answer: Json = harmless_document(self._backend.explain(name))
            return answer

    def list_nodes(self) -> list[Json]:
        with _telling():
            return _harmless(self._backend.list_nodes())

    def suppose(self, question: object) -> Json:
        """Ask a process of its own, so that a long game keeps no viewer waiting."""
        words = [
            sys.executable,
            "-P",
            "-m",
            "dlctl.verbs.studies.supposing",
            str(self._folders.root),
        ]
        try:
            ended = subprocess.run(  # noqa: S603 - our own module
                words,
                input=json.dumps(question),
                stdout=subprocess.PIPE,
                text=True,
                timeout=LONGEST_QUESTION_S,
                check=False,
            )
            answer: Json = json.loads(ended.stdout)
        except (subprocess.TimeoutExpired, ValueError) as error:
            raise SourceError(
                "the answer takes too long here; ask with dljob simulate --live", status=504
            ) from error
        if "error" in answer:
            raise SourceError(answer["error"], status=answer["status"])
        checked: Json = harmless_document(answer)
        return checked

    def _iter_entries(self) -> Iterator[Entry]:
        """List the present jobs, of which the store may have forgotten how they began."""
        for order, document in enumerate(self._backend.list_jobs().items):
            try:
                job = jobfile.parse(document, require_template=True)
            except jobfile.JobFileError:
                # The page shows what the store has of it.
                continue
            yield Entry(job, order, status_documents.read_status(document.get("status") or {}))


def _harmless(items: list[Json]) -> list[Json]:
    """Show as escapes what a reader does not see, as everywhere on the page."""
    return [harmless_document(each) for each in items]


@contextmanager
def _telling() -> Iterator[None]:
    """Tell of what goes wrong as the page's server tells it."""
    try:
        yield
    except BackendError as error:
        status = 503 if isinstance(error, Away) else 404 if isinstance(error, NotThere) else 502
        raise SourceError(str(error), status=status) from error


def main(root: str, host: str, port: str) -> None:
    """Serve until standard input is closed."""
    os.nice(NICE)
    token = secrets.token_urlsafe(TOKEN_BYTES)
    try:
        door = listen(host, int(port))
    except OSError as error:
        _answer({"problem": error.strerror or str(error)})
        return
    with door:
        _answer({"port": door.getsockname()[1], "token": token})
        loopback = ip_address(door.getsockname()[0]).is_loopback
        guard = Guard(token, loopback=loopback, name="" if loopback else host)
        server = Server(LiveSource(Path(root)), guard)
        asyncio.run(serve(server.application(), door, until=_wait_for_end))


def _answer(document: Mapping[str, object]) -> None:
    """Tell the process that has started this one."""
    sys.stdout.write(json.dumps(document) + "\n")
    sys.stdout.flush()


async def _wait_for_end() -> None:
    """Return when the controller has closed its end, or is gone."""
    ended = asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.add_reader(sys.stdin.fileno(), ended.set)
    await ended.wait()
    loop.remove_reader(sys.stdin.fileno())


if __name__ == "__main__":
    main(*sys.argv[1:])
