"""The page as a file: its policy, its size, what is embedded, and that its libraries are the published ones."""

import base64
import gzip
import hashlib
import json
import re
from html.parser import HTMLParser
from importlib import resources

from addons.web.tests.records import SCRIPT, hostile_record
from dljob_web.document import policy, read_parts, write_page
from dljob_web.page_data import make_page_data

MOST_COMPRESSED_BYTES = 60_000


class Elements(HTMLParser):
    """The elements that a browser makes of the text, with their attributes and text."""

    def __init__(self):
        super().__init__()
        self.found = [["", {}, ""]]

    def handle_starttag(self, tag, attrs):
        self.found.append([tag, dict(attrs), ""])

    def handle_endtag(self, tag):
        # The following text belongs to no element that a test looks at.
        self.found.append(["", {}, ""])

    def handle_data(self, data):
        self.found[-1][2] += data


def elements(text):
    parser = Elements()
    parser.feed(text)
    return parser.found


def hash_of(text):
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def test_only_the_script_and_the_style_of_the_page_may_run():
    found = elements(write_page(make_page_data(hostile_record())))
    [declared] = [
        each[1]["content"]
        for each in found
        if each[1].get("http-equiv") == "Content-Security-Policy"
    ]
    assert declared == policy()
    directives = dict(part.split(" ", 1) for part in declared.split("; "))
    [style] = [text for tag, _, text in found if tag == "style"]
    data, script = ((attributes, text) for tag, attributes, text in found if tag == "script")
    assert directives["default-src"] == "'none'"
    assert directives["style-src"] == f"'{hash_of(style)}'"
    assert directives["script-src"] == f"'{hash_of(script[1])}'"
    assert data[0] == {"type": "application/json", "id": "data"}
    assert "unsafe" not in declared
    assert "connect-src" not in directives


def test_nothing_is_loaded_from_elsewhere():
    text = write_page(make_page_data(hostile_record()))
    for tag, attributes, _ in elements(text):
        assert "src" not in attributes, tag
        assert attributes.get("href", "data:,") == "data:,"
    style = read_parts().style
    assert "url(" not in style
    assert "@import" not in style


def test_hostile_names_end_neither_the_data_nor_the_title():
    text = write_page(make_page_data(hostile_record()))
    found = elements(text)
    assert [tag for tag, _, _ in found].count("script") == 2
    assert "img" not in [tag for tag, _, _ in found]
    [title] = [content for tag, _, content in found if tag == "title"]
    assert title.startswith("</title><script>")
    [data] = [content for tag, attributes, content in found if attributes.get("id") == "data"]
    assert not re.search("[<>&]", data)
    assert json.loads(data)["jobs"][0]["name"] == SCRIPT


def test_the_libraries_are_the_published_ones():
    folder = resources.files("dljob_web").joinpath("page", "vendor")
    lines = folder.joinpath("SHA256SUMS").read_text(encoding="utf-8").splitlines()
    listed = {name: digest for digest, name in map(str.split, lines)}
    found = {
        each.name: hashlib.sha256(each.read_bytes()).hexdigest()
        for each in folder.iterdir()
        if each.name != "SHA256SUMS"
    }
    assert found == listed
    # Each has its licence beside it.
    assert {name for name in found if name.startswith("LICENSE-")} == {
        f"LICENSE-{name.removesuffix('.js')}" for name in found if name.endswith(".js")
    }


def test_the_page_without_data_is_small():
    parts = read_parts()
    assert len(gzip.compress((parts.script + parts.style).encode())) < MOST_COMPRESSED_BYTES
