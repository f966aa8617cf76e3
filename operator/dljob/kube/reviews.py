"""Asks the API server for the user of a token and that user's rights, and caches each answer
briefly.

Therefore the servers of DLJob need no users and rights of their own.
"""

import asyncio
import hashlib
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

from dljob.core.primitives.rate_limit import RateLimit
from dljob.kube.client import ApiServer
from dljob.kube.resources import ACCESS_REVIEWS, TOKEN_REVIEWS

REMEMBERED_S: Final = 60.0
"""How long an answer is cached, so that not every request costs two more."""
MOST_REMEMBERED: Final = 10_000
MOST_AT_ONCE: Final = 8
"""The most reviews at the same time."""

MOST_NEW: Final = 100
NEW_PER_S: Final = 10.0
"""The rate of reviews of new tokens after a burst of ``MOST_NEW``, because programs without rights can make up tokens."""

LONGEST_TOKEN: Final = 1 << 16

K = TypeVar("K")
V = TypeVar("V")


class TooMany(Exception):
    """New tokens arrive faster than they are reviewed."""


@dataclass(frozen=True, slots=True)
class User:
    """A user as the API server knows it; equal users have equal rights."""

    name: str
    uid: str = ""
    groups: tuple[str, ...] = ()
    extra: tuple[tuple[str, tuple[str, ...]], ...] = ()

    @classmethod
    def read(cls, user: Mapping[str, Any]) -> "User":
        extra = user.get("extra") or {}
        return cls(
            name=user["username"],
            uid=user.get("uid", ""),
            groups=tuple(user.get("groups") or ()),
            extra=tuple((key, tuple(values)) for key, values in sorted(extra.items())),
        )

    def spec(self) -> dict[str, Any]:
        return {
            "user": self.name,
            "uid": self.uid,
            "groups": list(self.groups),
            "extra": {key: list(values) for key, values in self.extra},
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Act:
    """An act that needs a right: on objects of a kind, or on a path of the API."""

    verb: str
    group: str = ""
    resource: str = ""
    namespace: str = ""
    """Empty: all namespaces, or a cluster-scoped kind."""
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
    """Asks the API server, and caches its answers; raises the errors of :class:`ApiServer`."""

    def __init__(self, api: ApiServer, *, remembered_s: float = REMEMBERED_S) -> None:
        self._api = api
        self._users: _Memory[bytes, User] = _Memory(remembered_s)
        # Keep them apart, so that made-up tokens do not evict the tokens of users.
        self._refused: _Memory[bytes, None] = _Memory(remembered_s)
        self._new = RateLimit(NEW_PER_S, MOST_NEW)
        self._rights: _Memory[tuple[User, Act], bool] = _Memory(remembered_s)
        self._asking = asyncio.Semaphore(MOST_AT_ONCE)

    async def identify(self, token: str) -> User | None:
        """Return the user of a token; ``None`` if the API server does not accept it; raises :class:`TooMany`."""
        if not token or len(token) > LONGEST_TOKEN:
            return None
        # Store a digest, so that no token is kept in memory.
        key = hashlib.sha256(token.encode(errors="replace")).digest()
        known, user = self._users.find(key)
        if known or self._refused.find(key)[0]:
            return user if known else None
        # Tokens that were accepted before are not limited.
        if user is None and not self._new.take_if_left(time.monotonic()):
            raise TooMany
        answer = await self._review(TOKEN_REVIEWS, {"token": token})
        named = answer.get("user") or {}
        if answer.get("authenticated") and named.get("username"):
            return self._users.keep(key, User.read(named))
        self._users.forget(key)
        return self._refused.keep(key, None)

    async def allows(self, user: User, act: Act) -> bool:
        known, allowed = self._rights.find((user, act))
        if known:
            return bool(allowed)
        answer = await self._review(ACCESS_REVIEWS, {**user.spec(), **act.attributes()})
        return self._rights.keep((user, act), bool(answer.get("allowed")))

    async def _review(self, kind: Any, spec: Mapping[str, Any]) -> dict[str, Any]:
        # Limit concurrency, so that many users at once do not use up the API server's share of our
        # account.
        async with self._asking:
            answer = await self._api.create(kind, {"spec": spec})
        status: dict[str, Any] = answer.get("status") or {}
        return status


class _Memory(Generic[K, V]):
    """A cache with an expiry time and a maximum size; the oldest value is evicted."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._kept: dict[K, tuple[V, float]] = {}

    def find(self, key: K) -> tuple[bool, V | None]:
        """Return whether the value is fresh, and the value even if it has expired."""
        value, until = self._kept.get(key, (None, 0.0))
        return time.monotonic() < until, value

    def forget(self, key: K) -> None:
        self._kept.pop(key, None)

    def keep(self, key: K, value: V) -> V:
        # Moves the key to the end.
        self.forget(key)
        while len(self._kept) >= MOST_REMEMBERED:
            del self._kept[next(iter(self._kept))]
        self._kept[key] = (value, time.monotonic() + self._seconds)
        return value
