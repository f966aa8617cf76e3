"""Which jobs a label selector selects, as kubectl has it."""

import pytest

from dljob.local.api.labels import SelectorError, parse

JOBS = {
    "vision": {"team": "vision", "tier": "prod"},
    "batch": {"team": "vision", "tier": "batch"},
    "speech": {"team": "speech"},
    "bare": {},
}

SELECTORS = {
    "": {"vision", "batch", "speech", "bare"},
    "team=vision": {"vision", "batch"},
    "team==vision": {"vision", "batch"},
    " team = vision ": {"vision", "batch"},
    "team=vision,tier=batch": {"batch"},
    "team=vision, tier!=batch": {"vision"},
    # A job without a label has no value of it, and so does not have this one.
    "tier!=batch": {"vision", "speech", "bare"},
    "tier": {"vision", "batch"},
    "!tier": {"speech", "bare"},
    "! tier": {"speech", "bare"},
    "team in (vision,speech)": {"vision", "batch", "speech"},
    "team in ( vision , speech ),!tier": {"speech"},
    "tier notin (batch)": {"vision", "speech", "bare"},
    "team=": set(),
}


def test_a_selector_selects():
    for text, expected in SELECTORS.items():
        selector = parse(text)
        found = {name for name, labels in JOBS.items() if selector.selects(labels)}
        assert found == expected, text


def test_wrong_selector_is_refused_with_an_example():
    wrong = (
        ",",
        "a,,b",
        "a=b=c",
        "=b",
        "a in b",
        "a in (b",
        "in (b)",
        "a b",
        "!",
        "a/b/c=d",
        "-a=b",
    )
    for text in wrong:
        with pytest.raises(SelectorError, match=r"; write such as team=vision,tier!=batch"):
            parse(text)
