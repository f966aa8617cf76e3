"""
The server of a store, which the first request connects to, checks and prepares.

Errors of the driver become a :class:`~dljob.store.store.StoreError` with a remedy and without passwords.
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock
from typing import Any

import pymongo
from pymongo import MongoClient
from pymongo.errors import (
    ConfigurationError,
    DuplicateKeyError,
    InvalidName,
    OperationFailure,
    PyMongoError,
)
from pymongo.uri_parser import parse_uri

from dljob.store.addresses import PASSWORD, USERNAME, MongoAddress
from dljob.store.store import StoreError, StoreUnavailableError, StoreUnusableError

Document = dict[str, Any]

SCHEMA = 1
"""The version of the schema; a server with a newer one is left alone."""

NEWEST_FIRST = [("at", -1), ("place", -1), ("_id", -1)]

_MISUNDERSTOOD = (PyMongoError, OSError, TypeError, ValueError)
"""The driver's exceptions about a URL and the files in it."""
_FORBIDDEN = 13
_REFUSED = frozenset({_FORBIDDEN, 18, 8000})
"""The error codes for wrong credentials."""
_DISK_FULL = 14031


class MongoServer:
    """A database on a server; every request gives up after ``patience_seconds``."""

    def __init__(self, address: MongoAddress, *, patience_seconds: float) -> None:
        self._at = address
        self._patience = patience_seconds
        self._connecting = Lock()
        self._client: MongoClient[Document] | None = None
        self._is_ready = False
        if not address.is_looked_up:
            try:
                parse_uri(address.url, validate=True, warn=False)
            except _MISUNDERSTOOD as error:
                # Not chained, because the driver's message may contain the URL.
                raise self._translated(error) from None

    @property
    def address(self) -> str:
        return self._at.shown

    def close(self) -> None:
        if self._client is not None:
            self._client.close()

    @contextmanager
    def asking(self) -> Iterator[Any]:
        """Use the database within the time limit; raises :class:`StoreError`."""
        try:
            # Including the time in which _connected() waits for another thread.
            with pymongo.timeout(self._patience):
                yield self._connected()
        except PyMongoError as error:
            raise self._translated(error) from None

    def _connected(self) -> Any:
        """Return the database; the first caller prepares it."""
        # Several threads may ask first.
        with self._connecting:
            if self._client is None:
                try:
                    self._client = MongoClient(self._at.url, **self._options())
                except _MISUNDERSTOOD as error:
                    raise self._translated(error) from None
            primary = pymongo.ReadPreference.PRIMARY
            db = self._client.get_database(self._at.database, read_preference=primary)
            if not self._is_ready:
                self._prepare(db)
                # After an error the next caller prepares it again.
                self._is_ready = True
        return db

    def _options(self) -> Document:
        options: Document = {"appname": "dljob", "w": "majority", "journal": True}
        given = {name: options[name] for name in options if name not in self._at.options}
        who = self._at.credentials
        if who.username:
            given |= {"username": who.username, "password": who.password}
        return given

    def _prepare(self, db: Any) -> None:
        """Check the schema of the database, and create the indexes."""
        try:
            # If two controllers prepare it at once, the server refuses one of the inserts.
            db.schema.insert_one({"_id": "schema", "version": SCHEMA})
        except DuplicateKeyError:
            self._check_schema(db.schema.find_one({"_id": "schema"}))
        except OperationFailure as error:
            found = db.schema.find_one({"_id": "schema"}) if error.code == _FORBIDDEN else None
            if found is None:
                raise
            # A user who may only read uses what a controller has prepared.
            self._check_schema(found)
            return
        db.profiles.create_index([("key", 1), ("revision", -1)])
        db.record.create_index([("job", 1), *NEWEST_FIRST[:2]])
        db.record.create_index(NEWEST_FIRST[:2])
        db.record.create_index([("kind", 1), ("at", 1)])

    def _check_schema(self, found: Document) -> None:
        version = found["version"]
        if version > SCHEMA:
            raise StoreUnusableError(
                self.address,
                f"has schema version {version}, and this dljob knows none above {SCHEMA}",
                "upgrade dljob, or name another database",
            ) from None

    def _translated(self, error: Exception) -> StoreError:
        code = error.code if isinstance(error, OperationFailure) else None
        why = self._at.scrub(_short(error))
        if code in _REFUSED:
            remedy = f"check user and password in the URL, or in {USERNAME} and {PASSWORD}"
            return StoreUnusableError(self.address, f"refuses these credentials ({why})", remedy)
        if code == _DISK_FULL:
            return self.away(f"cannot write, because its disk is full ({why})", "make room there")
        # For servers that are found by DNS, this may be a failed look-up.
        misread = isinstance(error, ConfigurationError) and not self._at.is_looked_up
        if misread or not isinstance(error, PyMongoError) or isinstance(error, InvalidName):
            return StoreUnusableError(self.address, f"cannot be used ({why})", "correct its URL")
        if code is not None:
            return self.away(f"failed the request ({why})", "look at its log")
        return self.away(
            f"does not answer ({why})", "check that it runs and can be reached from here"
        )

    def away(self, message: str, remedy: str) -> StoreError:
        return StoreUnavailableError(self.address, message, remedy)


def _short(error: Exception) -> str:
    """Return the first part of the driver's message, without its internals."""
    first = re.split(r"\n| \(configured timeouts|, Timeout: |, full error: ", str(error))[0]
    return first[:200] or type(error).__name__
