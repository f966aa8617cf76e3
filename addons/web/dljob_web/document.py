"""
The page as one document: its script, its style and its data, or none where the page asks its server.

The content-security policy names the script and the style by their hashes, so that nothing else runs,
also where a file is opened without a server that sends headers.
"""

import base64
import hashlib
import html
import json
from functools import cache
from importlib import resources
from typing import Any, NamedTuple

from dljob.core.recording.record import Record
from dljob_web.linking import link
from dljob_web.page_data import PageData, make_page_data

ENTRY = "main.js"
STYLE = "page.css"


class Parts(NamedTuple):
    """The parts of each page that never change while a program runs."""

    script: str
    style: str


def read_source(name: str) -> str:
    return (
        resources.files("dljob_web").joinpath("page", *name.split("/")).read_text(encoding="utf-8")
    )


@cache
def read_parts() -> Parts:
    return Parts(link(read_source, ENTRY), read_source(STYLE))


def policy(*, live: bool = False) -> str:
    """Return the content-security policy: the page runs its own script; a live one asks its own server alone."""
    parts = read_parts()
    directives = {
        "default-src": "'none'",
        **({"connect-src": "'self'"} if live else {}),
        "script-src": _hash(parts.script),
        "style-src": _hash(parts.style),
        "img-src": "data:",
        "base-uri": "'none'",
        "form-action": "'none'",
    }
    return "; ".join(f"{name} {value}" for name, value in directives.items())


def export(record: Record) -> bytes:
    return write_page(make_page_data(record)).encode()


def write_page(data: PageData) -> str:
    title = f"{data.title or data.source}: GPUs over time"
    embedded = f'<script type="application/json" id="data">{_embed(data.document())}</script>\n'
    return _write(title, policy(), embedded)


def write_live_page(*, login: bool = False) -> str:
    """
    Write the page that asks its server for the data; it has nothing in it that is not in this package.

    With ``login`` a token begins a session with the server, and the page does not keep it.
    """
    mark = '<meta name="dljob-login" content="session">\n' if login else ""
    return _write("GPUs over time", policy(live=True), mark)


def _write(title: str, allowed: str, data: str) -> str:
    parts = read_parts()
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{html.escape(allowed)}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta name="referrer" content="no-referrer">
<title>{html.escape(title)}</title>
<link rel="icon" href="data:,">
<style>{parts.style}</style>
</head>
<body>
<div id="page"><noscript>This page draws with JavaScript; it loads nothing from elsewhere.</noscript></div>
{data}<script type="module">{parts.script}</script>
</body>
</html>
"""


def _hash(text: str) -> str:
    digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
    return f"'sha256-{digest}'"


def _embed(data: Any) -> str:
    """Write JSON in which no character ends a script, or is a line's end to JavaScript alone."""
    text = json.dumps(data, allow_nan=False, separators=(",", ":"))
    for character in "<>&":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text
