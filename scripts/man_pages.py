"""
The man pages of the command, one for ``dljob`` and one for each verb, made from the output of ``--help``.

`scripts/man_pages.py FOLDER` writes them. Hatchling calls the hook at the end while it builds a wheel, which installs
them into share/man/man1, or an sdist. Where the packages that verbs import are not installed, as in an isolated build
of a checkout, a wheel has the pages that its sdist brought, or none.
"""

import re
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import click

ROOT = Path(__file__).resolve().parent.parent
BROUGHT = ROOT / "man"
"""Where an sdist has them."""


# --- the pages ----------------------------------------------------------------------------


def write_pages(folder: Path, version: str) -> list[Path]:
    """Write all pages into a folder; raises :class:`ImportError` where a verb cannot be loaded."""
    sys.path[:0] = [
        str(ROOT / each)
        for each in ("operator", "sidecar", "addons/lab", "addons/mcp", "addons/web")
    ]
    from dljob.cli.main import cli  # noqa: PLC0415 - an isolated build does not have what it needs

    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for path, command in iter_commands(cli, "dljob"):
        page = folder / f"{path.replace(' ', '-')}.1"
        page.write_text(write_page(path, command, version), encoding="utf-8")
        written.append(page)
    return written


def iter_commands(command: "click.Command", path: str) -> "Iterator[tuple[str, click.Command]]":
    """Yield a command and the commands below it, each with the words that call it."""
    import click  # noqa: PLC0415 - as above

    yield path, command
    if isinstance(command, click.Group):
        context = click.Context(command, info_name=path)
        for name in command.list_commands(context):
            below = command.get_command(context, name)
            assert below is not None
            yield from iter_commands(below, f"{path} {name}")


def write_page(path: str, command: "click.Command", version: str) -> str:
    """Write the page of one command."""
    import click  # noqa: PLC0415 - as above

    context = click.Context(command, info_name=path, max_content_width=100)
    title = path.replace(" ", "-")
    lines = [
        f'.TH "{escape(title.upper())}" 1 "" "dljob {version}" "DLJob"',
        ".SH NAME",
        f"{escape(title)} \\- {escape(command.get_short_help_str(limit=200).rstrip('.'))}",
        ".SH SYNOPSIS",
        f"\\fB{escape(path)}\\fR {escape(' '.join(command.collect_usage_pieces(context)))}",
        ".SH DESCRIPTION",
        *write_text(command.help or ""),
    ]
    records = [each.get_help_record(context) for each in command.get_params(context)]
    options = [record for record in records if record is not None]
    if options:
        lines.append(".SH OPTIONS")
        for names, meaning in options:
            lines += [".TP", f"\\fB{escape(names)}\\fR", escape(meaning) or "\\&"]
    if isinstance(command, click.Group):
        lines.append(".SH COMMANDS")
        for name in command.list_commands(context):
            below = command.get_command(context, name)
            assert below is not None
            lines += [".TP", f"\\fB{escape(title)}\\-{escape(name)}\\fR(1)"]
            lines.append(escape(below.get_short_help_str(limit=200)))
    elif path != "dljob":
        lines += [".SH SEE ALSO", "\\fBdljob\\fR(1)"]
    return "\n".join(lines) + "\n"


def write_text(text: str) -> Iterator[str]:
    """Write paragraphs; one that begins with a backspace keeps its lines, as click has it."""
    for number, paragraph in enumerate(re.split(r"\n\s*\n", text.partition("\f")[0].strip())):
        is_kept = paragraph.lstrip().startswith("\b")
        lines = [line.strip("\b").rstrip() for line in paragraph.splitlines()]
        lines = [line for line in lines if line.strip()]
        if number:
            yield ".PP"
        if is_kept:
            yield from (".nf", *map(escape, lines), ".fi")
        else:
            yield escape(" ".join(line.strip() for line in lines))


def escape(text: str) -> str:
    """Write text so that roff shows it as it is."""
    text = text.replace("\\", "\\e").replace("-", "\\-").replace("`", "\\(ga")
    text = re.sub(r"[^\x00-\x7f]", lambda found: f"\\[u{ord(found[0]):04X}]", text)
    return f"\\&{text}" if text.startswith((".", "'")) else text


# --- called by Hatchling ------------------------------------------------------------------


def get_build_hook() -> Any:
    """Return the hook; as Hatchling finds it."""
    from hatchling.builders.hooks.plugin.interface import (  # noqa: PLC0415 - only a build has it
        BuildHookInterface,
    )

    class ManPages(BuildHookInterface[Any]):
        def initialize(self, version: str, build_data: dict[str, Any]) -> None:
            if version == "editable":
                return
            # One for each build, because several may run at once; it goes with the hook, also where the build fails.
            self._made = tempfile.TemporaryDirectory(
                prefix="dljob-man-", ignore_cleanup_errors=True
            )
            for page in find_pages(Path(self._made.name), self.metadata.version):
                if self.target_name == "wheel":
                    build_data["shared_data"][str(page)] = f"share/man/man1/{page.name}"
                else:
                    build_data["force_include"][str(page)] = f"man/{page.name}"

        def finalize(self, version: str, *_: Any) -> None:
            if version != "editable":
                self._made.cleanup()

    return ManPages


def find_pages(folder: Path, version: str) -> list[Path]:
    """Make the pages in a folder, or find those that an sdist has brought."""
    if BROUGHT.is_dir():
        return sorted(BROUGHT.glob("*.1"))
    try:
        return write_pages(folder, version)
    except ImportError as error:
        sys.stderr.write(f"no man pages: {error}\n")
        return []


if __name__ == "__main__":
    from importlib import metadata

    write_pages(Path(sys.argv[1]), metadata.version("dljob"))
