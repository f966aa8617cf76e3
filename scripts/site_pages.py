"""
The pages of the site (mkdocs.yml) that are not in docs/: those of other folders, and those made of schemas.

MkDocs calls the ``on_`` functions while it builds. Pages that are made here are made at each build, so
that they cannot be stale. Links between pages of the repository become links of the site; a link to a file
that is no page of the site becomes its text, because the site is complete without the repository.
"""

import json
import posixpath
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parent.parent
MOVED = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "examples/README.md": "examples.md",
    "profiles/README.md": "profiles.md",
    "docs/decisions": "decisions/index.md",
}
"""Where pages from outside docs/ are in the site."""
CRD = "crds/dljobs.dljob.io.yaml"
LINK = re.compile(r"(?P<text>!?\[(?:[^\[\]]|\[[^\]]*\])*\])\((?P<target>[^)\s]+)\)")
FENCE = re.compile(r"(^```.*?^```\s*?$)", re.DOTALL | re.MULTILINE)

Schema = Mapping[str, Any]


# --- called by MkDocs ---------------------------------------------------------------------


def on_files(files: Any, config: Any) -> Any:
    """Add the pages that are not in docs/."""
    from mkdocs.structure.files import File  # noqa: PLC0415 - it is installed only where the site is built

    for path, text in pages().items():
        files.append(File.generated(config, path, content=text))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Let links lead to where the pages are in the site, and put the text next to the page for programs."""
    there = {file.src_uri for file in files}
    text = "".join(
        part if part.startswith("```") else move_links(part, page.file.src_uri, there)
        for part in FENCE.split(markdown)
    )
    beside = Path(config["site_dir"], page.file.src_uri)
    beside.parent.mkdir(parents=True, exist_ok=True)
    beside.write_text(text, encoding="utf-8")
    return text


def on_post_build(config: Any) -> None:
    """Write what language models read first: https://llmstxt.org."""
    site = Path(config["site_dir"])
    sections = {
        title: {name: (site / name).read_text(encoding="utf-8") for name in names}
        for title, names in sections_of(config["nav"]).items()
    }
    text = write_llms(config["site_name"], config["site_description"], sections)
    (site / "llms.txt").write_text(text, encoding="utf-8")


# --- for language models ------------------------------------------------------------------


def sections_of(nav: Sequence[Any], above: str = "") -> dict[str, list[str]]:
    """Return the pages of each section of the navigation by the section's titles, as ``Guides: Training``."""
    sections: dict[str, list[str]] = {}
    for item in nav:
        if isinstance(item, str):
            sections.setdefault(above, []).append(item)
            continue
        for title, inner in item.items():
            if isinstance(inner, str):
                sections.setdefault(above, []).append(inner)
            else:
                sections |= sections_of(inner, f"{above}: {title}" if above else title)
    return sections


def write_llms(name: str, does: str, sections: Mapping[str, Mapping[str, str]]) -> str:
    """List the pages of each section, each with its title and the first sentence of its text."""
    lines = [f"# {name}", "", f"> {does}", ""]
    for section, texts in sections.items():
        lines += [f"## {section}", ""]
        lines += [f"- [{title_of(text)}]({path}): {begin_of(text)}" for path, text in texts.items()]
        lines.append("")
    return "\n".join(lines).rstrip() + "\n"


def title_of(text: str) -> str:
    title = re.search(r"^# (.+)$", text, re.MULTILINE)
    assert title is not None, "a page begins with its title"
    return title[1].replace("`", "")


def begin_of(text: str) -> str:
    """Find the first sentence of a page that is neither a picture, a table, a list nor a heading."""
    for paragraph in re.split(r"\n\s*\n", FENCE.sub("", text)):
        plain = " ".join(paragraph.split())
        if plain and plain[0] not in "#!|<[-*":
            plain = LINK.sub(lambda link: link["text"][1:-1], plain)
            found = re.match(r".+?\.(?=\s|$)", plain)
            return found[0] if found else plain
    return title_of(text)


# --- links --------------------------------------------------------------------------------


def move_links(text: str, page: str, there: set[str]) -> str:
    origin = next(
        (old for old, new in MOVED.items() if new == page and old.endswith(".md")), f"docs/{page}"
    )

    def move(found: re.Match[str]) -> str:
        path, mark, anchor = found["target"].partition("#")
        if not path or "://" in path or path.startswith("mailto:"):
            return found[0]
        old = posixpath.normpath(posixpath.join(posixpath.dirname(origin), path))
        new = MOVED.get(old, old.removeprefix("docs/"))
        if new not in there and (ROOT / old).exists():
            return found["text"][1:-1]
        return f"{found['text']}({posixpath.relpath(new, posixpath.dirname(page) or '.')}{mark}{anchor})"

    return LINK.sub(move, text)


# --- pages --------------------------------------------------------------------------------


def pages() -> dict[str, str]:
    """Make the text of each page that is not in docs/, by its path in the site."""
    copied = {
        new: (ROOT / old).read_text(encoding="utf-8")
        for old, new in MOVED.items()
        if old.endswith(".md")
    }
    return {
        **copied,
        "decisions/index.md": list_decisions(),
        "reference/dljob.md": write_fields(read_yaml(CRD)),
        "reference/sidecar-api.md": write_api(read_yaml("docs/openapi.yaml")),
    }


def read_yaml(path: str) -> dict[str, Any]:
    document: dict[str, Any] = yaml.safe_load((ROOT / path).read_text(encoding="utf-8"))
    return document


def list_decisions() -> str:
    lines = ["# Decisions", "", "Why things are as they are, and what was turned down.", ""]
    for file in sorted((ROOT / "docs" / "decisions").glob("0*.md")):
        title = file.read_text(encoding="utf-8").splitlines()[0].removeprefix("# ")
        number, _, name = title.partition(". ")
        lines.append(f"- {number}: [{name}]({file.name})")
    return "\n".join(lines) + "\n"


# --- the custom resource ------------------------------------------------------------------


def write_fields(crd: Schema) -> str:
    """Make the page of a DLJob's fields from the definition of the custom resource."""
    [version] = crd["spec"]["versions"]
    schema = version["schema"]["openAPIV3Schema"]
    lines = [
        f"# Fields of a {crd['spec']['names']['kind']}",
        "",
        f"`apiVersion: {crd['spec']['group']}/{version['name']}`. Users write `spec`, the operator writes `status`.",
        "`[]` is an item of a list, `{}` a value under a name of the user's choice.",
        "",
    ]
    for part in ("spec", "status"):
        lines += [f"## {part}", "", "| field | type | what it is |", "|---|---|---|"]
        lines += [
            f"| `{path}` | {kind_of(field)} | {in_cell(field.get('description', ''))} |"
            for path, field in fields_of(schema["properties"][part], part)
        ]
        lines.append("")
    return "\n".join(lines)


def fields_of(schema: Schema, path: str) -> Iterator[tuple[str, Schema]]:
    for name, field in schema.get("properties", {}).items():
        yield f"{path}.{name}", field
        yield from fields_of(field, f"{path}.{name}")
    for key, mark in (("items", "[]"), ("additionalProperties", "{}")):
        inner = schema.get(key)
        if isinstance(inner, dict):
            yield from fields_of(inner, path + mark)


def kind_of(schema: Schema) -> str:
    """Return the type of a field and its bounds, in a few words."""
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return f"[{name}](#{name.lower()})"
    if "anyOf" in schema or "oneOf" in schema:
        kinds = [kind_of(each) for each in schema.get("anyOf", schema.get("oneOf", ()))]
        return " or ".join(dict.fromkeys(kinds))
    named = schema.get("type", "any")
    kind = " or ".join(named) if isinstance(named, list) else named
    if isinstance(schema.get("items"), dict):
        kind = f"list of {kind_of(schema['items'])}"
    if "enum" in schema:
        kind = ", ".join(f"`{each}`" for each in schema["enum"])
    low, high = schema.get("minimum"), schema.get("maximum")
    if low is not None or high is not None:
        kind += f", {'' if low is None else low}–{'' if high is None else high}"
    if "default" in schema:
        kind += f", default `{json.dumps(schema['default'])}`"
    return kind


def in_cell(text: str) -> str:
    """Write a text so that it stays in one cell of a table."""
    plain = " ".join(text.split()).replace("``", "`")
    return plain.replace("|", "\\|").replace("<", "&lt;")


# --- the API of the SideCar ---------------------------------------------------------------


def write_api(document: Schema) -> str:
    """Make the page of an API from its OpenAPI document."""
    info, parts = document["info"], document["components"]
    lines = [f"# API of the {info['title'].removeprefix('DLJob ')}", "", info["description"], ""]
    for tag in document["tags"]:
        lines += [f"- **{tag['name']}**: {tag['description']}"]
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            lines += ["", f"## {method.upper()} {path}", ""]
            lines += list(write_operation(operation, parts["responses"]))
    lines += ["", "## Messages", ""]
    for name, schema in parts["schemas"].items():
        lines += [f"### {name}", "", in_cell(schema.get("description", "")), ""]
        lines += list(write_message(schema))
    return "\n".join(lines) + "\n"


def write_operation(operation: Schema, responses: Schema) -> Iterator[str]:
    yield f"{operation['summary']} Door: {', '.join(operation['tags'])}."
    yield ""
    body = operation.get("requestBody")
    if body is not None:
        for content, media in body["content"].items():
            yield f"The body is {kind_of(media['schema'])}, as `{content}`."
            yield ""
    if "parameters" in operation:
        yield from ("| parameter | type | what it is |", "|---|---|---|")
        for each in operation["parameters"]:
            yield f"| `{each['name']}` | {kind_of(each['schema'])} | {in_cell(each['description'])} |"
        yield ""
    yield from ("| status | answer |", "|---|---|")
    for status, answer in operation["responses"].items():
        known = responses[answer["$ref"].rpartition("/")[2]] if "$ref" in answer else answer
        kinds = [kind_of(media["schema"]) for media in known.get("content", {}).values()]
        yield f"| {status} | {in_cell(known['description'])} {', '.join(kinds)} |"
    yield ""


def write_message(schema: Schema) -> Iterator[str]:
    variants = schema.get("oneOf", schema.get("anyOf"))
    if variants is not None:
        for each in variants:
            inner = each.get("allOf", [each])
            yield f"- {', '.join(map(kind_of, inner))}"
        yield ""
    if "properties" in schema:
        required = set(schema.get("required", ()))
        yield from ("| field | type | what it is |", "|---|---|---|")
        for name, field in schema["properties"].items():
            must = "" if name in required else " (may be left out)"
            yield f"| `{name}` | {kind_of(field)}{must} | {in_cell(field.get('description', ''))} |"
        yield ""
