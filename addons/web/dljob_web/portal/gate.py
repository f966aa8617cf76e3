"""
The user behind a request: known by a token in a header, or by a session that began with one.

A program sends its token with each request, as to the API server. A browser sends it once, and gets a cookie and a proof
that name a session (:mod:`dljob_web.portal.sessions`). Scripts cannot read the cookie, other sites cannot make the browser send
it, and it goes over TLS alone, or to this machine. The page sends the proof, which no other origin can read.
"""

from collections.abc import Collection
from typing import Final
from urllib.parse import urlsplit

from aiohttp import web

from dljob.kube.client import Rejected, Unreachable
from dljob.kube.reviews import Reviews, TooMany, User
from dljob_web.guarding import (
    CALLER,
    GUARDED,
    LOCALHOST,
    Caller,
    Handler,
    is_host_ours,
    read_bearer,
    refuse,
)
from dljob_web.portal.proxying import PROOF, Proxy
from dljob_web.portal.sessions import LONGEST_S, Name, Sessions

SESSION: Final = "/api/v1/session"
COOKIE: Final = "__Host-dljob"
SESSION_PROOF: Final = "X-DLJob-Session"
USER: Final = web.RequestKey("user", User)

UNKNOWN: Final = (
    "the token is missing, or the API server does not accept it; log in with a token of yours, such as one that"
    " kubectl create token ACCOUNT prints"
)


class Gate:
    """Lets requests of known users pass, and opens and closes their sessions."""

    def __init__(self, reviews: Reviews, hosts: Collection[str], *, proxy: Proxy | None) -> None:
        """A request names the server by an address, or by one of ``hosts``."""
        self._reviews = reviews
        self._proxy = proxy
        self._names = frozenset({LOCALHOST, *(host.lower() for host in hosts)})
        self._sessions = Sessions()

    @web.middleware
    async def check(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Let a request pass, or refuse it."""
        if not is_host_ours(request, self._names, loopback=False):
            return refuse(
                403,
                "this server is asked by its address, or by a name that it has; name the others in web.hosts of the"
                " chart",
            )
        if request.method not in ("GET", "HEAD") and not _is_from_page(request):
            return refuse(403, "this request comes from a page of another server")
        # A session is opened with a token that is checked there, and closed by one that need not be valid any more.
        if request.path.startswith(GUARDED) and request.path != SESSION:
            token = self._find_token(request)
            user = await self._identify(request, token)
            if isinstance(user, web.Response):
                return user
            request[USER] = user
            request[CALLER] = Caller(user.name, token)
        return await handler(request)

    async def open_session(self, request: web.Request) -> web.Response:
        """Log a user in: the token is in the header, once."""
        token = read_bearer(request)
        user = await self._review(token)
        if isinstance(user, web.Response):
            return user
        # The browser forgets the name of its session before, which would remain.
        self._sessions.close(_name_in(request))
        name = self._sessions.open(token, user.name)
        answer = web.json_response({"user": user.name, "proof": name.proof})
        answer.set_cookie(
            COOKIE,
            name.cookie,
            max_age=int(LONGEST_S),
            path="/",
            secure=True,
            httponly=True,
            samesite="Strict",
        )
        return answer

    async def close_session(self, request: web.Request) -> web.Response:
        """Log a user out."""
        self._sessions.close(_name_in(request))
        answer = web.json_response({})
        answer.del_cookie(COOKIE, path="/", secure=True, httponly=True, samesite="Strict")
        return answer

    async def _identify(self, request: web.Request, token: str) -> User | web.Response:
        """Return the user whose request it is, or a refusal."""
        if self._proxy is not None and PROOF in request.headers:
            return self._proxy.identify(request)
        return await self._review(token)

    def _find_token(self, request: web.Request) -> str:
        """Return the token of the user whose request it is; empty for a user whom a proxy names."""
        if self._proxy is not None and PROOF in request.headers:
            return ""
        # A program that sends a token means that user, also where a cookie of another one comes along.
        if "Authorization" in request.headers:
            return read_bearer(request)
        return self._sessions.find(_name_in(request))

    async def _review(self, token: str) -> User | web.Response:
        try:
            user = await self._reviews.identify(token)
        except TooMany:
            answer = refuse(429, "too many unknown tokens come in; try again in a moment")
            answer.headers["Retry-After"] = "1"
            return answer
        except (Rejected, Unreachable) as error:
            return refuse(503, f"the API server cannot be asked whose token this is: {error}")
        if user is not None:
            return user
        answer = refuse(401, UNKNOWN)
        answer.headers["WWW-Authenticate"] = "Bearer"
        return answer


def _name_in(request: web.Request) -> Name:
    return Name(request.cookies.get(COOKIE, ""), request.headers.get(SESSION_PROOF, ""))


def _is_from_page(request: web.Request) -> bool:
    """Return whether a request was made by our own page, or by no page."""
    # Browsers send it with every request that is no plain look; programs do not.
    origin = request.headers.get("Origin")
    return origin is None or urlsplit(origin).netloc == request.headers.get("Host")
