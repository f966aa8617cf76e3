"""
The names in the pages exist: files, modules, verbs, options, settings, variables, metrics and
links.

A page that speaks of something that was renamed or removed is worse than no page. Prose cannot be
checked, but the names in it can: each of them is looked for where it would be defined.
"""

import ast
import json
import re
import shlex
import subprocess
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import click
import pytest
import yaml

from dljob.cli.main import cli
from dljob.control.settings import PREFIX, Settings, load_tree
from dljob.core.documents import jobfile, profilefile
from dljob.local.setup import LocalSettings
from dljob.operator.settings import OperatorSettings
from dljob_wire.problems import WrongDocument

ROOT = Path(__file__).resolve().parents[2]

FOLDERS = ("operator", "sidecar")
TOP = {
    *(
        "addons",
        "benchmarks",
        "crds",
        "docs",
        "examples",
        "manifests",
        "operator",
        "profiles",
        "scripts",
    ),
    *("sidecar", "tests"),
}
"""The folders of which pages name files."""

USERS_FILES = {
    *("http_server.py", "mine.py", "my_policy.py", "own.py", "train.py", "your_policy.py"),
    *("data.py", "main.py", "model.py", "script.py", "test.py"),
}
"""Files of users in examples, and of programs of others."""

FOREIGN = {
    # kubectl, helm, kustomize
    *("--all-namespaces", "--as", "--create-namespace", "--dry-run", "--field-selector"),
    *(
        "--force-conflicts",
        "--kubeconfig",
        "--manifest",
        "--namespace",
        "--reset-then-reuse-values",
        "--server-side",
    ),
    *("--set", "--set-json", "--set-string", "--subresource", "--take-ownership", "--values"),
    *("--version", "--cascade", "--overrides", "--previous", "--force", "--raw", "--wait"),
    # docker, podman, buildah, curl, systemd, pip, torchrun, horovodrun, make
    *("--build", "--build-arg", "--rm", "--user", "--unix-socket", "--now", "--image", "--restart"),
    *("--host-discovery-script", "--min-np", "--max-np", "--nproc-per-node", "--nnodes"),
    *("--log-dir", "--max-restarts", "--rdzv-backend", "--rdzv-endpoint", "--rdzv-id"),
    *("--redirects", "--standalone", "--tee"),
    # Slurm
    *("--gpus-per-node", "--jobid", "--nodes", "--overlap", "--start", "--time"),
    *("--controller-name", "--prefix", "--device", "--index-url", "--create-all"),
}
"""Options of programs of others."""


@cache
def tracked() -> tuple[str, ...]:
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=60.0
    )
    if listed.returncode != 0:
        pytest.skip("not a git checkout")
    return tuple(name for name in listed.stdout.splitlines() if (ROOT / name).is_file())


def is_page(name: str) -> bool:
    # The entries of the changelog were true then.
    return name.endswith(".md") and name != "CHANGELOG.md" and "LICENSES" not in name


@cache
def pages() -> Mapping[str, str]:
    return {name: (ROOT / name).read_text(encoding="utf-8") for name in tracked() if is_page(name)}


@cache
def sources() -> str:
    """All that is no page, and in which something may be defined."""
    texts = []
    for name in tracked():
        if not name.endswith(".md") and name.partition("/")[0] in {*TOP, "Makefile", ".ci"}:
            try:
                texts.append((ROOT / name).read_text(encoding="utf-8"))
            except UnicodeDecodeError:
                continue
    return "\n".join(texts)


def read(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def lines() -> Iterator[tuple[str, str]]:
    for name, text in pages().items():
        for number, line in enumerate(text.splitlines(), start=1):
            yield f"{name}:{number}", line


def quoted() -> Iterator[tuple[str, str]]:
    """Yield what stands between backticks, with where it stands."""
    for place, line in lines():
        for word in re.findall(r"`([^`]+)`", line):
            yield place, word


# --- files and modules --------------------------------------------------------------------


def test_every_path_that_pages_name_is_there():
    assert {"README.md", "CONTRIBUTING.md", "docs/architecture.md"} <= pages().keys()
    missing = []
    for place, word in quoted():
        path = word.rstrip("/").removeprefix("./")
        is_path = path.partition("/")[0] in TOP and re.fullmatch(r"[\w./*-]+/[\w./*-]+", path)
        # A decision also says what was turned down.
        is_left_out = "/decisions/" in place or Path(path).name in USERS_FILES
        if is_path and not is_left_out and not any(ROOT.glob(path)):
            missing.append(f"{place}: {word}")
    assert missing == []


def find_definition(name: str) -> bool:
    """Return whether a dotted name is a module of ours, or something that a module of ours defines."""
    package, *parts = name.split(".")
    for folder in FOLDERS:
        path, rest = ROOT / folder / package, list(parts)
        while rest and (path / rest[0]).is_dir():
            path /= rest.pop(0)
        if rest and (path / f"{rest[0]}.py").is_file():
            path = path / f"{rest.pop(0)}.py"
        if path.is_dir() and not rest:
            return True
        file = path if path.is_file() else path / "__init__.py"
        if file.is_file() and all(part in names_of(file) for part in rest):
            return True
    return False


@cache
def names_of(file: Path) -> frozenset[str]:
    names = set()
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        match node:
            case ast.ClassDef() | ast.FunctionDef() | ast.AsyncFunctionDef():
                names.add(node.name)
            case ast.Name():
                names.add(node.id)
            case ast.alias():
                names.add(node.asname or node.name)
    return frozenset(names)


PACKAGES = {
    path.name for folder in FOLDERS for path in (ROOT / folder).iterdir() if path.is_dir()
} - {"dljob"}
"""Without the package whose names are those of dljob.api, and which is also the name of the project."""


def test_every_module_and_name_of_ours_that_pages_name_is_there():
    missing = [
        f"{place}: {word}"
        for place, word in quoted()
        if re.fullmatch(r"dl[a-z]+(\.\w+)+", word)
        and word.partition(".")[0] in PACKAGES
        and not find_definition(word)
    ]
    assert missing == []


def links() -> Iterator[tuple[str, str]]:
    for name, text in pages().items():
        prose = re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE)
        for target in re.findall(r"\]\(([^)\s]+)\)", prose):
            if "://" not in target and not target.startswith("mailto:"):
                yield name, target


def test_every_link_between_pages_leads_somewhere():
    broken = []
    for name, target in links():
        path, _, anchor = target.partition("#")
        file = (ROOT / name).parent / path if path else ROOT / name
        has_anchor = not anchor or file.suffix != ".md" or anchor in anchors_of(file)
        if not file.exists() or not has_anchor:
            broken.append(f"{name}: {target}")
    assert broken == []


@cache
def anchors_of(page: Path) -> frozenset[str]:
    text = re.sub(
        r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE
    )
    titles = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return frozenset(re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles)


# --- the command --------------------------------------------------------------------------


def code() -> Iterator[tuple[str, str]]:
    for name, text in pages().items():
        joined = text.replace("\\\n", " ")
        for block in re.findall(r"^```[a-z]*\n(.*?)^```", joined, re.DOTALL | re.MULTILINE):
            for line in block.splitlines():
                yield name, line.strip()


def commands() -> Iterator[tuple[str, str]]:
    """Yield each command line of dljob in the code of pages, with the page that it is in."""
    for name, line in code():
        found = re.match(r"(?:\$ )?(?:kubectl )?dljob (\S.+)$", line)
        if found and "…" not in line:
            yield name, found[1]


def take(words: list[str]) -> tuple[click.Command, list[str]]:
    """Follow the verbs of a command line, and return its command with the words behind."""
    command: click.Command = cli
    context = click.Context(cli)
    while isinstance(command, click.Group) and words and not words[0].startswith("-"):
        found = command.get_command(context, words[0])
        if found is None:
            raise LookupError(words[0])
        command, words = found, words[1:]
    return command, words


def test_every_command_in_code_has_its_verb_and_its_options():
    wrong, count = [], 0
    for place, line in commands():
        words = shlex.split(line.partition(" #")[0].partition("|")[0].partition("&")[0])
        if not words or words[0].endswith(":"):
            continue
        count += 1
        try:
            command, rest = take(words)
        except LookupError as error:
            wrong.append(f"{place}: dljob {line}: no verb {error}")
            continue
        rest = rest[: rest.index("--")] if "--" in rest else rest
        known = {name for each in command.params for name in (*each.opts, *each.secondary_opts)}
        wrong += [
            f"{place}: dljob {line}: no option {word}"
            for word in rest
            if word.startswith("--") and word.partition("=")[0] not in {*known, "--help"}
        ]
    assert count > 50
    assert wrong == []


def test_every_verb_in_prose_is_one():
    wrong = []
    for place, word in quoted():
        found = re.match(r"(?:kubectl )?dljob ([a-z]+(?:-[a-z]+)*)\b", word)
        if found and cli.get_command(click.Context(cli), found[1]) is None:
            wrong.append(f"{place}: {word}")
    assert wrong == []


def test_every_option_in_prose_is_one_of_something():
    settings = ("--" + respelled(path, "-").lower() for path in leaves())
    known = set(re.findall(r"--[a-z][a-z0-9-]+", sources())) | FOREIGN | set(settings)
    wrong = [
        f"{place}: {option}"
        for place, word in quoted()
        for option in re.findall(r"(?<![\w-])--[a-z][a-z0-9-]*[a-z0-9](?![\w-])", word)
        if option not in known
    ]
    assert wrong == []


def blocks() -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the documents in the YAML blocks of the pages, with their page."""
    for name, text in pages().items():
        for block in re.findall(r"^```yaml\n(.*?)^```", text, re.DOTALL | re.MULTILINE):
            for document in yaml.safe_load_all(block):
                yield name, document


OF_OTHERS = ("daemonsets", "driver", "multiKueue", "scaleTargetRef", "command", "volumes")
"""The first words of documents for programs of others, of which a page shows a part."""
LEAST_JOB = ROOT / "tests" / "core" / "data" / "good_jobs" / "least.yaml"


def read_block(document: dict[str, Any]) -> None:
    """Read a document as the program reads it to which users give it."""
    crd = yaml.safe_load((ROOT / "crds/dljobs.dljob.io.yaml").read_text(encoding="utf-8"))
    schema = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]
    values = yaml.safe_load((ROOT / "manifests/chart/values.yaml").read_text(encoding="utf-8"))
    part = document.get("spec", document)
    if document.get("kind") == "Profile":
        profilefile.parse(document)
    elif "kind" in document:
        jobfile.parse(document)
    elif set(part) <= set(schema["properties"]):
        least = yaml.safe_load(LEAST_JOB.read_text(encoding="utf-8"))
        jobfile.parse({**least, "spec": {**least["spec"], **part}})
    elif "metrics" in document:
        assert set(document["metrics"]) <= set(values["metrics"])
    else:
        tree = OperatorSettings() if "pool" in document else LocalSettings()
        load_tree(tree, document, file="page")


def test_every_yaml_block_is_read_by_its_program():
    read = 0
    for name, document in blocks():
        kind, first = document.get("kind", "DLJob"), next(iter(document))
        is_pod = first == "spec" and "containers" in document["spec"]
        if kind not in ("DLJob", "Profile") or first in OF_OTHERS or is_pod:
            continue
        read += 1
        try:
            read_block(document)
        except WrongDocument as error:
            pytest.fail(f"{name}: {error}")
    assert read >= 15


# --- settings, variables, metrics ---------------------------------------------------------


@cache
def leaves() -> frozenset[str]:
    """Every setting of a controller and of the operator, as ``rules.lostSeconds``."""
    return frozenset({*walk(Settings()), *walk(OperatorSettings())})


def respelled(path: str, by: str) -> str:
    """Write ``rules.lostSeconds`` as ``rules-lost-Seconds``, for options and variables."""
    return re.sub("([A-Z])", rf"{by}\1", path).replace(".", by)


def walk(tree: Any, prefix: str = "") -> Iterator[str]:
    for name in getattr(tree, "__dataclass_fields__", {}):
        path = prefix + re.sub(r"_(\w)", lambda found: found[1].upper(), name)
        yield path
        yield from walk(getattr(tree, name), f"{path}.")


def keys(tree: Any, prefix: str = "") -> Iterator[str]:
    """Every path of a document, lists and the parts of schemas left out."""
    if isinstance(tree, list):
        for each in tree:
            yield from keys(each, prefix)
    if isinstance(tree, dict):
        for name, value in tree.items():
            path = prefix if name in ("properties", "items") else f"{prefix}{name}."
            yield path.rstrip(".")
            yield from keys(value, path)


@cache
def paths() -> frozenset[str]:
    """Every path of a setting, of a value of the chart and of a field of a DLJob."""
    chart = yaml.safe_load((ROOT / "manifests/chart/values.yaml").read_text(encoding="utf-8"))
    schema = json.loads((ROOT / "manifests/chart/values.schema.json").read_text(encoding="utf-8"))
    crd = yaml.safe_load((ROOT / "crds/dljobs.dljob.io.yaml").read_text(encoding="utf-8"))
    (version,) = crd["spec"]["versions"]
    fields = keys(version["schema"]["openAPIV3Schema"])
    return frozenset({*leaves(), *keys(chart), *keys(schema), *fields})


def test_every_setting_value_and_field_that_pages_name_is_there():
    """
    Only dotted names whose first part is a group of settings are held to it.

    Others, such as ``torch.save`` and ``tls.key``, are names of something else.
    """
    groups = {path.partition(".")[0] for path in leaves() if "." in path}
    tails = {path[at:] for path in paths() for at in starts_of(path)}
    missing = [
        f"{place}: {word}"
        for place, word in quoted()
        if re.fullmatch(r"[a-z]\w*(\.[a-z]\w*)+", word)
        and word.partition(".")[0] in {*groups, "spec", "status"}
        and not any(word.endswith(end) for end in (".py", ".yaml", ".json", ".md"))
        and word not in tails
        and word.partition(".")[2] not in tails
        # A field that only programs see, in what `-o json` prints.
        and not (word.startswith("status.") and f'"{word.rpartition(".")[2]}"' in sources())
    ]
    assert missing == []


def starts_of(path: str) -> list[int]:
    return [0, *(index + 1 for index, letter in enumerate(path) if letter == ".")]


def test_every_environment_variable_that_pages_name_is_read_or_set():
    of_settings = {PREFIX + respelled(path, "_").upper() for path in leaves()}
    # Every option of the SideCar is also a variable.
    of_options = {
        "DLJOB_SIDECAR_" + option.upper().replace("-", "_")
        for option in re.findall(r'"--([a-z][a-z-]+)"', read("sidecar/dljob_sidecar/options.py"))
    }
    known = {*re.findall(r"DLJOB_[A-Z_]+[A-Z]", sources()), *of_settings, *of_options}
    wrong = [
        f"{place}: {word}"
        for place, line in lines()
        for word in re.findall(r"(?<!\w)DLJOB_[A-Z_]+[A-Z]", line)
        if word not in known
    ]
    assert wrong == []


def test_every_metric_that_pages_name_is_measured():
    code = sources()
    wrong = [
        f"{place}: {word}"
        for place, line in lines()
        for word in re.findall(r"(?<![\w/])dljob_[a-z_]+[a-z]", line)
        if f'"{word}' not in code and word.removeprefix("dljob_sidecar_") not in code
    ]
    assert wrong == []


def test_no_page_or_message_takes_dljob_from_a_package_index():
    found = [
        f"{name}: {line}"
        for name in tracked()
        if (is_page(name) and name != "CHANGELOG.md") or name.startswith(("operator/", "scripts/"))
        for line in (ROOT / name).read_text(encoding="utf-8").splitlines()
        if re.search(
            r"(pip|pipx|uv tool) install\b[^`|]*\s['\"]?dljob(\[\w+\])?['\"]?\s*($|[`;'\"|])", line
        )
    ]
    assert found == []
