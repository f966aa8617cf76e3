"""The site of the docs: its pages that are made of schemas, its links and its navigation."""

import re
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml

from tests.scripts import loaded

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def site() -> Iterator[ModuleType]:
    with loaded("site_pages.py") as module:
        yield module


def test_a_link_leads_to_where_its_page_is_in_the_site(site):
    for page, link, moved in (
        ("index.md", "[x](docs/gpus.md#a)", "[x](gpus.md#a)"),
        ("index.md", "![x](docs/pictures/demo.svg)", "![x](pictures/demo.svg)"),
        ("gpus.md", "[x](../README.md#a)", "[x](index.md#a)"),
        ("decisions/1.md", "[x](../gpus.md)", "[x](../gpus.md)"),
        ("gpus.md", "[`train.py`](../examples/torchrun/train.py)", "`train.py`"),
        ("gpus.md", "[x](https://example.org/gpus.md)", "[x](https://example.org/gpus.md)"),
    ):
        assert site.move_links(link, page, {"gpus.md", "index.md", "pictures/demo.svg"}) == moved


def test_each_page_of_the_docs_is_in_the_navigation(site):
    listed = [page for pages in site.sections_of(navigation()).values() for page in pages]
    docs = ROOT / "docs"
    there = {str(path.relative_to(docs)) for path in docs.rglob("*.md")}
    assert sorted(listed) == sorted(there | set(site.pages()))


def navigation() -> list[Any]:
    # The rest of the file has a tag of MkDocs' own.
    text = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    nav: list[Any] = yaml.safe_load(text[text.index("\nnav:") :])["nav"]
    return nav


def test_the_navigation_has_five_tabs():
    assert [title for part in navigation() for title in part] == [
        "Get started",
        "Concepts",
        "Guides",
        "Reference",
        "Inside",
    ]


def test_sections_within_sections_keep_the_titles_above_them(site):
    nav = [{"A": ["a.md", {"B": ["b.md", {"Title": "c.md"}]}, "d.md"]}, {"E": ["e.md"]}]
    assert site.sections_of(nav) == {"A": ["a.md", "d.md"], "A: B": ["b.md", "c.md"], "E": ["e.md"]}


def test_the_site_loads_nothing_from_elsewhere():
    text = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    settings = "\n".join(line for line in text.splitlines() if not line.startswith("#"))
    assert "font: false" in settings
    assert "extra_javascript" not in settings
    assert "mermaid" not in settings, "the theme would fetch its program"
    assert "://" not in settings


def test_language_models_find_each_page_with_a_sentence(site):
    made = site.pages()
    sections = {
        title: {
            name: made[name] if name in made else (ROOT / "docs" / name).read_text(encoding="utf-8")
            for name in names
        }
        for title, names in site.sections_of(navigation()).items()
    }
    listed = site.write_llms("DLJob", "Elastic GPU scheduling.", sections)
    found = re.findall(r"^- \[([^\]]+)\]\(([\w./-]+\.md)\): (\S.{10,})$", listed, re.MULTILINE)
    assert [path for _, path, _ in found] == [name for names in sections.values() for name in names]
    assert listed.startswith("# DLJob\n\n> Elastic GPU scheduling.\n\n## Get started\n")


def test_a_page_is_listed_with_its_first_sentence(site):
    for text, sentence in (
        ("# T\n\n![x](y.svg)\n\n- item\n\nOne. Two.", "One."),
        (
            "# T\n\n[Kueue](https://kueue.example) admits jobs. DLJob sizes them.",
            "Kueue admits jobs.",
        ),
        ("# T\n\n[![x](y.svg)](z)\n\nOne.", "One."),
        ("# T\n\n**One** is first. Two.", "**One** is first."),
        ("# T\n\n| a |\n|---|", "T"),
    ):
        assert site.begin_of(text) == sentence
