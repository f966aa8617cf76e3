"""
The rights of users at a server that several users share (``dljob up --system``).

The kernel identifies the user and the groups of the process that has connected. Each job belongs to its submitter. Other
users see only the name, the owner, the phase and the GPUs of a job, and the record has the latter as anonymous blocks;
everything else, and every change, needs its owner or root. Requests that are not listed as open to all need root.

:mod:`dljob.local.api.serving` checks every request. On a server of one user no other user can open the socket.
"""

import re
import socket
import struct
from collections.abc import Callable, Iterable
from typing import Any

from aiohttp import web

from dljob.control.sidecars.peers import read_peer
from dljob.core.model import JobId
from dljob.local.api.refusals import Handler, RefusedError
from dljob.local.api.requests import CALLER, insist_on_client
from dljob.local.environments import Submitter, name_user
from dljob.local.jobs.registry import Registry

SO_PEERGROUPS = 59
MOST_BYTES = 1024
"""The longest socket option that Python reads: 256 groups."""

OPEN = frozenset(
    {
        ("GET", "/v1/about"),
        ("GET", "/v1/nodes"),
        ("GET", "/v1/events"),
        ("GET", "/v1/record"),
        ("GET", "/v1/jobs"),
        ("POST", "/v1/jobs"),
        ("POST", "/v1/plan"),
        ("POST", "/v1/what-if"),
        ("GET", "/v1/jobs/{name}"),
    }
)
"""Requests that each user may make. Their answers leave out what the user may not see."""

OF_A_JOB = "/v1/jobs/{name}"

NAMESPACE = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")

NUMBER = re.compile(r"(uid-)?[0-9]+")


def identify(connection: Any) -> Submitter:
    """Return the user at the other end of a connection, by the kernel."""
    _, uid, gid = read_peer(connection)
    try:
        groups = connection.getsockopt(socket.SOL_SOCKET, SO_PEERGROUPS, MOST_BYTES)
    except OSError as error:
        raise RefusedError(
            403,
            f"the groups of user {uid} cannot be read ({error.strerror}); at most 256 are possible",
        ) from error
    return Submitter.known(uid, gid, [each for (each,) in struct.iter_unpack("I", groups)])


def namespace_of(submitter: Submitter) -> str:
    """Name the namespace of a user's jobs: the user name, if that is a valid namespace."""
    # A login must not get the namespace of the user with that number.
    is_number = NUMBER.fullmatch(submitter.user) and submitter.user != str(submitter.uid)
    if NAMESPACE.fullmatch(submitter.user) and not is_number:
        return submitter.user
    return f"uid-{submitter.uid}"


class Access:
    def __init__(self, registry: Registry, *, shared: bool) -> None:
        self._registry = registry
        self._shared = shared

    @web.middleware
    async def guard(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Identify the user who asks, and let the request pass or refuse it."""
        if not self._shared:
            request[CALLER] = Submitter.of_this_process()
        else:
            request[CALLER] = identify(insist_on_client(request).get_extra_info("socket"))
            self._check(request, request[CALLER])
        return await handler(request)

    def home(self, caller: Submitter) -> str:
        """Return the default namespace of a user."""
        return namespace_of(caller) if self._shared else ""

    def sees_all(self, caller: Submitter) -> bool:
        """Return whether a user may see all of all jobs."""
        return not self._shared or caller.uid == 0

    def may_see(self, caller: Submitter) -> Callable[[JobId], bool]:
        """Return a function that says whether a user may see all of a job."""
        return lambda job: self._owns(caller, job)

    def claim(self, caller: Submitter, documents: Iterable[Any]) -> None:
        """Put jobs into the namespace of a user, and refuse any other namespace."""
        home = self.home(caller)
        for document in documents:
            metadata = document.get("metadata") if isinstance(document, dict) else None
            if not home or not isinstance(metadata, dict):
                continue
            given = metadata.setdefault("namespace", home)
            if given != home:
                raise RefusedError(
                    403,
                    f'metadata.namespace: "{given}" is not yours; yours is your user name, {home};'
                    " leave it out",
                )

    def _check(self, request: web.Request, caller: Submitter) -> None:
        resource = request.match_info.route.resource
        path = resource.canonical if resource is not None else ""
        if resource is None or (request.method, path) in OPEN:
            return
        if path.startswith(OF_A_JOB):
            # A job that takes the name later has the same owner, because `claim` puts each job into the namespace of its
            # submitter.
            job = JobId(request.match_info["name"])
            if not self._owns(caller, job):
                raise RefusedError(403, self._refusal(job))
        elif caller.uid != 0:
            raise RefusedError(403, f"{request.method} {path} needs root; run it with sudo")

    def _owns(self, caller: Submitter, job: JobId) -> bool:
        if self.sees_all(caller):
            return True
        if job in self._registry.entries:
            return self._registry.origin(job).submitter.uid == caller.uid
        # A removed job's owner is known only by the namespace.
        return job.startswith(f"{namespace_of(caller)}/")

    def _refusal(self, job: JobId) -> str:
        if job not in self._registry.entries:
            return f"{job}: is not among your jobs; dljob get lists them"
        owner = name_user(self._registry.origin(job).submitter.uid)
        return (
            f"{job} belongs to {owner}; only {owner} and root may see more than dljob get shows, or"
            " change it"
        )
