"""
Asks the API server for the user of a token and for that user's rights, by its own reviews; each answer counts for a short time.

So a server of ours gives rights of its own to no user: it asks the API server, which knows the users and their rights.
"""

import asyncio
import hashlib
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

from dlcore.primitives.rate_limit import RateLimit
from dlkube.client import ApiServer
from dlkube.resources import ACCESS_REVIEWS, TOKEN_REVIEWS

REMEMBERED_S: Final = 60.0
"""For this time an answer counts, so that not each request costs two more."""
MOST_REMEMBERED: Final = 10_000
MOST_AT_ONCE: Final = 8
"""The API server is asked no more questions at the same time, however many users come."""

MOST_NEW: Final = 100
NEW_PER_S: Final = 10.0
"""The API server is asked about ``MOST_NEW`` new tokens at once, and after that about this number a second: each costs it
a review, and programs without rights can make up tokens."""

LONGEST_TOKEN: Final = 1 << 16

K = TypeVar("K")
V = TypeVar("V")


class TooMany(Exception):
    """New tokens come faster than the API server is asked about them."""


@dataclass(frozen=True, slots=True)
class User:
    """A user as the API server knows it; equal if it has the same rights."""

    name: str
    uid: str = ""
    groups: tuple[str, ...] = ()
    extra: tuple[tuple[str, tuple[str, ...]], ...] = ()

    @classmethod
    def read(cls, told: Mapping[str, Any]) -> "User":
        extra = told.get("extra") or {}
        return cls(
            name=told["username"],
            uid=told.get("uid", ""),
            groups=tuple(told.get("groups") or ()),
            extra=tuple((key, tuple(values)) for key, values in sorted(extra.items())),
        )

    def spec(self) -> dict[str, Any]:
        """Write the user as a review asks about it."""
        return {
            "user": self.name,
            "uid": self.uid,
            "groups": list(self.groups),
            "extra": {key: list(values) for key, values in self.extra},
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Act:
    """An act that a user may do or not: on objects of a kind, or on a path of an API."""

    verb: str
    group: str = ""
    resource: str = ""
    namespace: str = ""
    """Empty: in all namespaces, or of a kind that is in none."""
    path: str = ""

    def attributes(self) -> dict[str, dict[str, str]]:
        if self.path:
            return {"nonResourceAttributes": {"verb": self.verb, "path": self.path}}
        attributes = {
            "verb": self.verb,
            "group": self.group,
            "resource": self.resource,
            "namespace": self.namespace,
        }
        return {"resourceAttributes": attributes}


class Reviews:
    """Asks the API server, and remembers its answers. It raises what :class:`ApiServer` raises."""

    def __init__(self, api: ApiServer, *, remembered_s: float = REMEMBERED_S) -> None:
        self._api = api
        self._users: _Memory[bytes, User] = _Memory(remembered_s)
        # Apart, so that tokens that were made up do not drive out those of users.
        self._refused: _Memory[bytes, None] = _Memory(remembered_s)
        self._new = RateLimit(NEW_PER_S, MOST_NEW)
        self._rights: _Memory[tuple[User, Act], bool] = _Memory(remembered_s)
        self._asking = asyncio.Semaphore(MOST_AT_ONCE)

    async def identify(self, token: str) -> User | None:
        """Return the user whose token it is; ``None`` if the API server accepts it from no user; raises :class:`TooMany`."""
        if not token or len(token) > LONGEST_TOKEN:
            return None
        # A digest, so that memory holds no token for longer than a request takes.
        key = hashlib.sha256(token.encode(errors="replace")).digest()
        known, user = self._users.find(key)
        if known or self._refused.find(key)[0]:
            return user if known else None
        # Users who were accepted before do not wait, however many others come.
        if user is None and not self._new.take_if_left(time.monotonic()):
            raise TooMany
        answer = await self._review(TOKEN_REVIEWS, {"token": token})
        told = answer.get("user") or {}
        if answer.get("authenticated") and told.get("username"):
            return self._users.keep(key, User.read(told))
        self._users.forget(key)
        return self._refused.keep(key, None)

    async def allows(self, user: User, act: Act) -> bool:
        """Return whether the user may do it."""
        known, allowed = self._rights.find((user, act))
        if known:
            return bool(allowed)
        answer = await self._review(ACCESS_REVIEWS, {**user.spec(), **act.attributes()})
        return self._rights.keep((user, act), bool(answer.get("allowed")))

    async def _review(self, kind: Any, spec: Mapping[str, Any]) -> dict[str, Any]:
        # Beyond that they wait here: many users at once must not use up what the API server grants to our account.
        async with self._asking:
            answer = await self._api.create(kind, {"spec": spec})
        status: dict[str, Any] = answer.get("status") or {}
        return status


class _Memory(Generic[K, V]):
    """Values that count for some time; beyond a number of them the oldest one is forgotten."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._kept: dict[K, tuple[V, float]] = {}

    def find(self, key: K) -> tuple[bool, V | None]:
        """Return whether the value counts, and the value, also one that counted before."""
        value, until = self._kept.get(key, (None, 0.0))
        return time.monotonic() < until, value

    def forget(self, key: K) -> None:
        self._kept.pop(key, None)

    def keep(self, key: K, value: V) -> V:
        # To the end, because a dict keeps the place of a key that it has.
        self.forget(key)
        while len(self._kept) >= MOST_REMEMBERED:
            del self._kept[next(iter(self._kept))]
        self._kept[key] = (value, time.monotonic() + self._seconds)
        return value
