"""The meaning of an address; no message shows its secrets."""

from pathlib import Path
from urllib.parse import quote

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dljob.store.addresses import (
    PASSWORD,
    USERNAME,
    Credentials,
    MongoAddress,
    read_address,
    redact,
)
from dljob.store.store import StoreUnusableError

NOBODY = Credentials()


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("dljob.db", "dljob.db"),
        ("/var/lib/dljob/store.db", "/var/lib/dljob/store.db"),
        ("~/store.db", str(Path("~/store.db").expanduser())),
        ("a folder/what?#%20.db", "a folder/what?#%20.db"),
        ("sqlite:///var/lib/store.db", "/var/lib/store.db"),
        ("sqlite:////var/lib/store.db", "/var/lib/store.db"),
        ("SQLite:///a%20b.db", "/a b.db"),
        ("C:store.db", "C:store.db"),
        (":memory:", ":memory:"),
    ],
)
def test_path_is_a_file(text: str, path: str):
    assert read_address(text, NOBODY) == Path(path)


@pytest.mark.parametrize(
    ("text", "shown", "database"),
    [
        ("mongodb://h", "mongodb://h/dljob", "dljob"),
        ("mongodb://h/", "mongodb://h/dljob", "dljob"),
        ("mongodb://h:1,i:2/db", "mongodb://h:1,i:2/db", "db"),
        ("MongoDB://h/db?tls=true", "mongodb://h/db", "db"),
        ("mongodb://bob:x@h/db", "mongodb://h/db", "db"),
        ("mongodb+srv://bob:x@h/db?w=1", "mongodb+srv://h/db", "db"),
        ("mongodb://[::1]:27017/db", "mongodb://[::1]:27017/db", "db"),
        ("mongodb://%2Ftmp%2Fmongo.sock/db", "mongodb://%2Ftmp%2Fmongo.sock/db", "db"),
    ],
)
def test_server_is_shown_without_secrets(text: str, shown: str, database: str):
    address = read_address(text, NOBODY)
    assert isinstance(address, MongoAddress)
    assert (address.shown, address.database) == (shown, database)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "is not the address of a store"),
        (" store.db", "is not the address of a store"),
        ("store\n.db", "is not the address of a store"),
        ("sqlite://store.db", "names no file; write sqlite:///ABSOLUTE/PATH"),
        ("sqlite:///", "names no file"),
        ("sqlite:///a?mode=ro", "names no file"),
        ("sqlite:store.db", "after sqlite: there are no two slashes"),
        ("mongodb:h", "after mongodb: there are no two slashes"),
        ("mongodb:///db", "names no server"),
        ("postgres://u:p@h/db", "postgres is not a kind of store that dljob supports"),
        ("https://u:p@h/db", "https is not a kind of store that dljob supports"),
        ("mongodb://u:p@ss@h/db", "have to be quoted; write %40 for @"),
        ("mongodb://u:p/w@h/db", "have to be quoted"),
        ("mongodb://u:p:w@h/db", "have to be quoted"),
        ("mongodb://u:p?w=1@h/db", "have to be quoted"),
    ],
)
def test_wrong_address_is_refused_with_a_remedy(text: str, told: str):
    with pytest.raises(StoreUnusableError, match=told) as raised:
        read_address(text, NOBODY)
    line = str(raised.value)
    assert "\n" not in line
    assert "; " in line


@pytest.mark.parametrize(
    ("url", "environment", "username", "password"),
    [
        ("mongodb://h", {}, "", ""),
        ("mongodb://h", {USERNAME: "eve", PASSWORD: "y"}, "eve", "y"),
        ("mongodb://bob@h", {PASSWORD: "y"}, "bob", "y"),
        ("mongodb://bob:x@h", {USERNAME: "eve", PASSWORD: "y"}, "bob", "x"),
        ("mongodb://b%40b:%2Fx@h", {}, "b@b", "/x"),
    ],
)
def test_environment_completes_the_url(
    url: str, environment: dict[str, str], username: str, password: str
):
    address = read_address(url, Credentials.of(environment))
    assert isinstance(address, MongoAddress)
    assert address.credentials == Credentials(username, password)


passwords = st.text(min_size=4, max_size=20).filter(str.strip)


@settings(max_examples=25)
@given(passwords, st.booleans())
def test_password_is_never_shown(password: str, quoted: bool):
    # Marks around the password, because a short password may occur in the text by chance.
    secret = f"QQ{password}ZZ"
    written = quote(secret, safe="") if quoted else secret
    url = f"mongodb://bob:{written}@localhost:27017/db"
    assert "QQ" not in redact(url)
    assert "ZZ" not in redact(url)
    told = f"connecting to {url} as bob with {secret} ({written}) failed"
    assert "QQ" not in everything_told(url, told)
    assert "ZZ" not in everything_told(url, "nothing")


def everything_told(url: str, text: str) -> str:
    """All that messages show about an address and this text."""
    try:
        address = read_address(url, NOBODY)
    except StoreUnusableError as error:
        return str(error)
    assert isinstance(address, MongoAddress)
    return f"{address.scrub(text)} {address} {address.shown}"


@pytest.mark.parametrize("name", ["tlsCertificateKeyFilePassword", "authMechanismProperties"])
def test_secret_options_are_never_shown(name: str):
    address = read_address(f"mongodb://h/db?{name}=QQsecret", NOBODY)
    assert isinstance(address, MongoAddress)
    assert "QQ" not in address.scrub(f"option {name}: QQsecret is wrong")
    assert "QQ" not in repr(address)
    assert "QQ" not in address.shown


def test_credentials_are_not_shown():
    assert "secret" not in repr(Credentials("bob", "secret"))
