"""
Reads the address of a store: a path, or the URL of a server.

A URL may contain a password, so every message about an address uses :func:`redact` or :meth:`MongoAddress.scrub`.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from urllib.parse import parse_qsl, quote, quote_plus, unquote, urlsplit

from dljob.store.store import StoreUnusableError

USERNAME = "DLJOB_STORE_USERNAME"
PASSWORD = "DLJOB_STORE_PASSWORD"  # noqa: S105 - the name of a variable
DEFAULT_DATABASE = "dljob"

REMEDY = "name a file, sqlite:///PATH or mongodb://HOST[:PORT][/DATABASE]"

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")
_NEEDS_QUOTES = re.compile(r"[/?#:@\[\]]")
_SECRET = re.compile("password|passphrase|properties")
"""Options whose values are secret."""


@dataclass(frozen=True, slots=True)
class Credentials:
    username: str = ""
    password: str = field(default="", repr=False)

    @classmethod
    def of(cls, environment: Mapping[str, str]) -> "Credentials":
        """Read the credentials from the environment, which process lists hide."""
        return cls(environment.get(USERNAME, ""), environment.get(PASSWORD, ""))


@dataclass(frozen=True, slots=True, kw_only=True)
class MongoAddress:
    """A database on a server with MongoDB's protocol."""

    url: str = field(repr=False)
    """The URL as the user wrote it, for the driver."""
    shown: str
    """The URL without secrets."""
    database: str
    credentials: Credentials
    """The credentials from the URL, or from the environment if the URL has none."""
    options: Mapping[str, str] = field(repr=False)
    """The options of the URL, by names in lower case."""

    @property
    def is_looked_up(self) -> bool:
        """Return whether the servers are found by DNS."""
        return self.url.startswith("mongodb+srv:")

    def scrub(self, text: str) -> str:
        """Remove the secrets from a text."""
        plain = {self.credentials.password, self.url}
        plain |= {value for name, value in self.options.items() if _SECRET.search(name)}
        quoted = {f(each) for each in plain for f in (quote, quote_plus, partial(quote, safe=""))}
        for secret in sorted(plain | quoted, key=len, reverse=True):
            text = text.replace(secret, "***") if secret else text
        return text


def read_address(text: str, credentials: Credentials) -> Path | MongoAddress:
    """Read an address; raises :class:`StoreUnusableError` with a remedy."""
    if not text or text != text.strip() or not text.isprintable():
        raise StoreUnusableError("store", f"{redact(text)!r} is not the address of a store", REMEDY)
    match = _SCHEME.match(text)
    if match is None:
        if re.match(r"(mongodb(\+srv)?|sqlite):", text):
            scheme = text.partition(":")[0]
            raise StoreUnusableError("store", f"after {scheme}: there are no two slashes", REMEDY)
        return Path(text).expanduser()
    scheme = match[1].lower()
    if scheme == "sqlite":
        parts = urlsplit(text)
        if parts.netloc or not parts.path.strip("/") or parts.query or parts.fragment:
            remedy = "write sqlite:///ABSOLUTE/PATH, or the path alone"
            raise StoreUnusableError(redact(text), "names no file", remedy)
        return Path("/" + unquote(parts.path).lstrip("/"))
    if scheme in ("mongodb", "mongodb+srv"):
        return _server(f"{scheme}{text[match.end(1) :]}", credentials)
    raise StoreUnusableError(
        redact(text), f"{scheme} is not a kind of store that dljob supports", REMEDY
    )


def redact(text: str) -> str:
    """Show a URL without user, password and options."""
    match = _SCHEME.match(text)
    if match is None:
        return text
    place, _, query = text[match.end() :].partition("?")
    # An unquoted password may contain a question mark.
    return f"{match[0]}{'***' if '@' in query else place.rpartition('@')[2]}"


def _server(url: str, credentials: Credentials) -> MongoAddress:
    shown = redact(url)
    rest = url.partition("://")[2]
    before, _, query = rest.partition("?")
    userinfo, _, place = before.rpartition("@")
    hosts, _, database = place.partition("/")
    if not hosts:
        raise StoreUnusableError(shown, "names no server", REMEDY)
    user, _, password = userinfo.partition(":")
    if _NEEDS_QUOTES.search(user + password) or "@" in query:
        remedy = f"write %40 for @, %2F for / and so on, or put them into {USERNAME} and {PASSWORD}"
        raise StoreUnusableError(
            shown, "holds signs in user or password that have to be quoted", remedy
        )
    return MongoAddress(
        url=url,
        shown=shown if database else f"{shown.rstrip('/')}/{DEFAULT_DATABASE}",
        database=unquote(database) or DEFAULT_DATABASE,
        credentials=Credentials(
            unquote(user) or credentials.username, unquote(password) or credentials.password
        ),
        options={name.lower(): value for name, value in parse_qsl(query, keep_blank_values=True)},
    )
