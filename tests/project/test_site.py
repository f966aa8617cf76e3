"""The site of the docs: its pages that are made of schemas, its links and its navigation."""

import re
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
import yaml

from tests.scripts import loaded

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def site() -> Iterator[ModuleType]:
    with loaded("site_pages.py") as module:
        yield module


def test_the_page_of_a_dljob_explains_each_field_of_the_definition(site):
    crd = yaml.safe_load((ROOT / "crds" / "dljobs.dljob.io.yaml").read_text(encoding="utf-8"))
    names = re.findall(
        r"^\| `(?:spec|status)\.([^`]+)` \| ([^|]+) \|", site.write_fields(crd), re.MULTILINE
    )
    assert {"gpus.options", "template.spec", "checkpoint"} <= {name for name, _ in names}
    properties = count_properties(crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"])
    # All but apiVersion, kind, metadata, and the two parts themselves.
    assert len(names) == properties - 5


def count_properties(schema: object) -> int:
    if not isinstance(schema, dict):
        return 0
    inner = [*schema.get("properties", {}).values()]
    nested = [*inner, schema.get("items"), schema.get("additionalProperties")]
    return len(inner) + sum(map(count_properties, nested))


def test_the_page_of_the_sidecar_has_each_path_and_each_message(site):
    api = yaml.safe_load((ROOT / "docs" / "openapi.yaml").read_text(encoding="utf-8"))
    titles = set(re.findall(r"^##+ (.+)$", site.write_api(api), re.MULTILINE))
    assert {f"{m.upper()} {path}" for path, ms in api["paths"].items() for m in ms} <= titles
    assert set(api["components"]["schemas"]) <= titles


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
    # The rest of the file has a tag of MkDocs' own.
    text = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    parts = yaml.safe_load(text[text.index("\nnav:") :])["nav"]
    listed = {page for part in parts for pages in part.values() for page in pages}
    docs = ROOT / "docs"
    there = {str(path.relative_to(docs)) for path in docs.rglob("*.md")}
    assert listed == there | set(site.pages())


def test_the_site_loads_nothing_from_elsewhere():
    text = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    settings = "\n".join(line for line in text.splitlines() if not line.startswith("#"))
    assert "font: false" in settings
    assert "extra_javascript" not in settings
    assert "mermaid" not in settings, "the theme would fetch its program"
    assert "://" not in settings


def test_language_models_find_each_page_with_a_sentence(site):
    settings = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    # The slugs of anchors are a Python function, which a plain reader of YAML refuses.
    navigation = yaml.safe_load(settings[settings.index("\nnav:") :])["nav"]
    made = site.pages()
    sections = {
        title: {
            name: made[name] if name in made else (ROOT / "docs" / name).read_text(encoding="utf-8")
            for name in names
        }
        for section in navigation
        for title, names in section.items()
    }
    listed = site.write_llms("DLJob", "Elastic GPU scheduling.", sections)
    found = re.findall(r"^- \[([^\]]+)\]\(([\w./-]+\.md)\): (\S.{10,})$", listed, re.MULTILINE)
    assert [path for _, path, _ in found] == [name for names in sections.values() for name in names]
    assert listed.startswith("# DLJob\n\n> Elastic GPU scheduling.\n\n## Start\n")
