"""Sessions expire, end at once when they are closed, and are limited in number."""

from dljob_web.portal import sessions
from dljob_web.portal.sessions import LONGEST_S, Name, Sessions


def test_a_session_ends_after_its_time_or_when_it_is_closed():
    now = [0.0]
    kept = Sessions(lambda: now[0])
    first, second = kept.open("a", "red"), kept.open("b", "red")
    assert (kept.find(first), kept.find(second), kept.find(Name("", ""))) == ("a", "b", "")
    kept.close(second)
    assert kept.find(second) == ""
    now[0] = LONGEST_S
    assert kept.find(first) == ""


def test_a_cookie_without_its_proof_is_of_no_use():
    kept = Sessions()
    first, second = kept.open("a", "red"), kept.open("b", "blue")
    for proof in ("", second.proof):
        stolen = Name(first.cookie, proof)
        assert kept.find(stolen) == ""
        kept.close(stolen)
    assert kept.find(first) == "a"


def test_the_oldest_session_makes_room(monkeypatch):
    monkeypatch.setattr(sessions, "MOST", 2)
    kept = Sessions()
    names = [kept.open(token, token) for token in "abc"]
    assert [kept.find(name) for name in names] == ["", "b", "c"]


def test_many_logins_end_only_own_sessions(monkeypatch):
    monkeypatch.setattr(sessions, "MOST_OF_USER", 2)
    kept = Sessions()
    other = kept.open("x", "blue")
    names = [kept.open(token, "red") for token in "abc"]
    assert [kept.find(name) for name in names] == ["", "b", "c"]
    assert kept.find(other) == "x"
