"""
Which requests the live page's server answers: those that have its token, and name it by an address.

The page itself has nothing secret in it and is given to all; what it asks for is given with the token alone. The
token is a header that the page keeps for its own origin. It is no cookie, because browsers send cookies to all
ports of a machine, and behind another port may be another user.
"""

import hmac
import ipaddress
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import Any, Final, NamedTuple
from urllib.parse import urlsplit

from aiohttp import web

from dljob_web.document import policy

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

GUARDED = "/api/"
"""Every path below this one needs the token."""

BEARER = "Bearer "

LOCALHOST = "localhost"


class Caller(NamedTuple):
    """The user behind a request; without a name where all viewers are one user."""

    name: str = ""
    token: str = ""
    """The user's own token, for requests to the API server in the user's name."""


CALLER: Final = web.RequestKey("caller", Caller)


HEADERS = {
    "Content-Security-Policy": f"{policy(live=True)}; frame-ancestors 'none'",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}


class Guard:
    def __init__(self, token: str, *, loopback: bool, names: Collection[str] = ()) -> None:
        """A request may also name this machine by one of ``names``."""
        self._token = token.encode()
        self._loopback = loopback
        self._names = frozenset({LOCALHOST, *(name.lower() for name in names)})

    @web.middleware
    async def check(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        if not is_host_ours(request, self._names, loopback=self._loopback):
            return refuse(
                403,
                "this server is asked by its address, such as 127.0.0.1 or localhost; name the machine with"
                " dljob up --web-host NAME to ask by that name",
            )
        if request.path.startswith(GUARDED):
            if not self._knows(request):
                answer = refuse(
                    401,
                    "the token is missing or wrong; open the address that dljob up --web or dljob web has printed",
                )
                answer.headers["WWW-Authenticate"] = "Bearer"
                return answer
            request[CALLER] = Caller()
        return await handler(request)

    def _knows(self, request: web.Request) -> bool:
        told = read_bearer(request).encode(errors="replace")
        return hmac.compare_digest(told, self._token)


def read_bearer(request: web.Request) -> str:
    """Return the token of a request's header; empty if it has none."""
    given = request.headers.get("Authorization", "")
    return given.removeprefix(BEARER) if given.startswith(BEARER) else ""


def is_host_ours(request: web.Request, names: Collection[str], *, loopback: bool) -> bool:
    """
    Return whether the header Host names this server, by an address or by one of its names.

    Else a page of any site could have its own name lead here, and read what is answered.
    """
    try:
        host = urlsplit(f"//{request.headers.get('Host', '')}").hostname or ""
        if host in names:
            return True
        address = ipaddress.ip_address(host)
    except ValueError:
        return False
    return address.is_loopback or not loopback


def refuse(status: int, reason: str, *, problems: Sequence[Mapping[str, Any]] = ()) -> web.Response:
    told = {"problems": list(problems)} if problems else {}
    return web.json_response({"error": reason, **told}, status=status)


async def add_headers(request: web.Request, answer: web.StreamResponse) -> None:  # noqa: ARG001 - as aiohttp calls it
    """Add the security headers of every response."""
    answer.headers.update(HEADERS)
    answer.headers.setdefault("Cache-Control", "no-store")
    # Hide the name and version of the server program.
    answer.headers.pop("Server", None)
