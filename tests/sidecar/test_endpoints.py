"""Endpoints ``[ADDRESS]:PORT`` are read by one rule, with one error."""

import pytest

from dljob_wire.endpoints import Endpoint, read_endpoint


def test_address_with_port_is_read_and_written():
    for text, host, port in (
        (":8080", "", 8080),
        ("127.0.0.1:0", "127.0.0.1", 0),
        ("[::1]:65535", "::1", 65535),
        ("[fe80::1%eth0]:80", "fe80::1%eth0", 80),
        ("node-1.example:80", "node-1.example", 80),
    ):
        found = read_endpoint(text)
        assert (found, str(found)) == (Endpoint(host, port), text)


NONE = (
    *("", "8080", ":", "a:", "a:b", ":65536", ":-1", ":1e3", ":٣", ":000080", "a:80\n"),
    *("::1:80", "[::1]", "[::1:80", "http://a:80", "a b:80", "user@a:80"),
)


def test_malformed_address_is_refused():
    for text in NONE:
        with pytest.raises(ValueError, match=r"is not an address .*; write \[ADDRESS\]:PORT"):
            read_endpoint(text)
    # A port that clients must know may not be 0.
    with pytest.raises(ValueError, match="with a port from 1 to 65535"):
        read_endpoint(":0", least_port=1)


def test_loopback_is_recognised():
    inside = ("127.0.0.1", "127.9.9.9", "::1", "localhost")
    assert all(Endpoint(host, 80).is_loopback for host in inside)
    outside = ("", "0.0.0.0", "10.0.0.1", "node-1")  # noqa: S104 - not opened
    assert not any(Endpoint(host, 80).is_loopback for host in outside)
