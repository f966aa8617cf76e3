"""
The page as one document: its script, its style and, in a file, its data.

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

from dlweb.linking import link

ENTRY = "main.js"
CLASSIC = "vendor/uplot.js"
"""It is no module: it makes a global name."""
STYLES = ("vendor/uplot.css", "page.css")


class Parts(NamedTuple):
    """The parts of each page, which never change while a program runs."""

    classic: str
    script: str
    style: str


def read_source(name: str) -> str:
    """Read a file of the page."""
    return resources.files("dlweb").joinpath("page", *name.split("/")).read_text(encoding="utf-8")


@cache
def read_parts() -> Parts:
    """Link the modules, and join the styles."""
    style = "\n".join(map(read_source, STYLES))
    return Parts(read_source(CLASSIC), link(read_source, ENTRY), style)


def policy(*, connects: bool) -> str:
    """Return the content-security policy; a page with a server asks it, and a file asks no server."""
    parts = read_parts()
    directives = {
        "default-src": "'none'",
        "script-src": f"{_hash(parts.classic)} {_hash(parts.script)}",
        "style-src": _hash(parts.style),
        "img-src": "data:",
        "connect-src": "'self'" if connects else "'none'",
        "base-uri": "'none'",
        "form-action": "'none'",
    }
    return "; ".join(f"{name} {value}" for name, value in directives.items())


def write_page(title: str, data: Any | None = None) -> str:
    """Write the page: with data it is a file that shows them, without it asks its server for them."""
    parts = read_parts()
    embedded = (
        "" if data is None else f'<script type="application/json" id="data">{_embed(data)}</script>'
    )
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{html.escape(policy(connects=data is None))}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta name="referrer" content="no-referrer">
<title>{html.escape(title)}</title>
<link rel="icon" href="data:,">
<style>{parts.style}</style>
</head>
<body>
<div id="page"><noscript>This page draws with JavaScript; it loads nothing from elsewhere.</noscript></div>
{embedded}
<script>{parts.classic}</script>
<script type="module">{parts.script}</script>
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
