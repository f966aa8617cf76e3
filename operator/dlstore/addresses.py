"""
Where a store is, as people write it: a path, or the URL of a server with or without credentials.

:mod:`dlstore.opening` and :mod:`dlstore.mongo.store` use it. Every text about an address for
a person or a log goes through here first, because a URL may hold a password.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import parse_qsl, quote, quote_plus, unquote, urlsplit

from dlstore.store import StoreUnusableError

USERNAME = "DLJOB_STORE_USERNAME"
PASSWORD = "DLJOB_STORE_PASSWORD"  # noqa: S105 - the name of a variable
DEFAULT_DATABASE = "dljob"

REMEDY = "name a file, sqlite:///PATH or mongodb://HOST[:PORT][/DATABASE]"

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")
_NEEDS_QUOTES = re.compile(r"[/?#:@\[\]]")
_SECRET = re.compile("password|passphrase|properties")
"""The values of options with such names are never shown."""


@dataclass(frozen=True, slots=True)
class Credentials:
    """The credentials for a server."""

    username: str = ""
    password: str = field(default="", repr=False)

    @classmethod
    def of(cls, environment: Mapping[str, str]) -> "Credentials":
        """Read them from the environment, where no list of processes shows them."""
        return cls(environment.get(USERNAME, ""), environment.get(PASSWORD, ""))


@dataclass(frozen=True, slots=True, kw_only=True)
class MongoAddress:
    """A server that speaks as MongoDB does, and a database on it."""

    url: str = field(repr=False)
    """As it was given, so that the driver understands everything in it."""
    shown: str
    """The same for people."""
    database: str
    credentials: Credentials
    """Of the URL, and of the environment what the URL does not hold."""
    options: Mapping[str, str] = field(repr=False)
    """The options behind the question mark, by names in small letters."""

    @property
    def is_looked_up(self) -> bool:
        """Whether the domain name system says where the servers are."""
        return self.url.startswith("mongodb+srv:")

    def scrub(self, text: str) -> str:
        """Remove the secrets from a text."""
        for secret in sorted(self._secrets(), key=len, reverse=True):
            text = text.replace(secret, "***")
        return text

    def _secrets(self) -> set[str]:
        plain = {self.credentials.password, self.url}
        plain |= {value for name, value in self.options.items() if _SECRET.search(name)}
        quoted = {f(each) for each in plain for f in (quote, quote_plus, _quoted_fully)}
        return {each for each in plain | quoted if each}


def _quoted_fully(text: str) -> str:
    return quote(text, safe="")


def read_address(text: str, credentials: Credentials) -> Path | MongoAddress:
    """Tell which store is meant; what cannot be one is refused with what to write instead."""
    if not text or text != text.strip() or not text.isprintable():
        raise StoreUnusableError("store", f"{redact(text)!r} is not the address of a store", REMEDY)
    match = _SCHEME.match(text)
    if match is None:
        return _path(text)
    scheme = match[1].lower()
    if scheme == "sqlite":
        return _path_of_url(text)
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
    # The end of a password that was not quoted as it should be is unknown.
    return f"{match[0]}{'***' if '@' in query else place.rpartition('@')[2]}"


def _path(text: str) -> Path:
    if re.match(r"(mongodb(\+srv)?|sqlite):", text):
        scheme = text.partition(":")[0]
        raise StoreUnusableError("store", f"after {scheme}: there are no two slashes", REMEDY)
    return Path(text).expanduser()


def _path_of_url(text: str) -> Path:
    parts = urlsplit(text)
    if parts.netloc or not parts.path.strip("/") or parts.query or parts.fragment:
        remedy = "write sqlite:///ABSOLUTE/PATH, or the path alone"
        raise StoreUnusableError(redact(text), "names no file", remedy)
    return Path("/" + unquote(parts.path).lstrip("/"))


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
