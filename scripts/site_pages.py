"""
The pages of the site (mkdocs.yml) that are not in docs/: those of other folders, and the list of decisions.

MkDocs calls the ``on_`` functions while it builds. Links between pages of the repository become links of the site; a link to a file
that is no page of the site becomes its text, because the site is complete without the repository.
"""

import posixpath
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
MOVED = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "SECURITY.md": "security-policy.md",
    "examples/README.md": "examples.md",
    "profiles/README.md": "profiles.md",
    "docs/decisions": "decisions/index.md",
}
"""Where pages from outside docs/ are in the site."""
LINK = re.compile(r"(?P<text>!?\[(?:[^\[\]]|\[[^\]]*\])*\])\((?P<target>[^)\s]+)\)")
FENCE = re.compile(r"(^```.*?^```\s*?$)", re.DOTALL | re.MULTILINE)


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
        if plain and not re.match(r"[#!|<]|\[!|[-*] ", plain):
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
    }


def list_decisions() -> str:
    lines = ["# Decisions", "", "Why things are as they are, and what was turned down.", ""]
    for file in sorted((ROOT / "docs" / "decisions").glob("0*.md")):
        title = file.read_text(encoding="utf-8").splitlines()[0].removeprefix("# ")
        number, _, name = title.partition(". ")
        lines.append(f"- {number}: [{name}]({file.name})")
    return "\n".join(lines) + "\n"
