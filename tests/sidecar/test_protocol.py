"""The documentation of the protocol matches the server."""

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml
from tornado.routing import PathMatches

from dljob_sidecar.behaviour.state import LIVE_CHANGE_FAILED, STUCK, TOO_SLOW, UNCONFIRMED
from dljob_sidecar.behaviour.table import draw
from dljob_sidecar.living import CERTIFICATES
from dljob_sidecar.remedies import REMEDIES
from dljob_sidecar.serving import serving
from dljob_sidecar.serving.serving import STATUS, controller_app, health_app, inner_app
from dljob_sidecar.serving.trust import Listener
from dljob_sidecar.settings import Serving
from dljob_wire import codec
from dljob_wire.messages import MESSAGES, Refused
from tests.scripts import loaded
from tests.sidecar.clients import lived
from tests.sidecar.fakes import Container

ROOT = Path(__file__).resolve().parents[2]
PROTOCOL = (ROOT / "docs" / "protocol.md").read_text(encoding="utf-8")
OPENAPI = yaml.safe_load((ROOT / "docs" / "openapi.yaml").read_text(encoding="utf-8"))


def served() -> Iterator[tuple[str, str, str]]:
    """Yield the listener, path and method of each handler."""
    agent, settings = Container().agent, Serving()
    apps = {
        "control": controller_app(agent, settings, listener=Listener()),
        "inner": inner_app(agent, settings),
        "health": health_app(agent, settings),
    }
    for listener, app in apps.items():
        for rule in app.wildcard_router.rules:
            assert isinstance(rule.matcher, PathMatches)
            assert issubclass(rule.target, serving.Handler)
            path = rule.matcher.regex.pattern.rstrip("$")
            yield from ((listener, path, method.lower()) for method in rule.target.methods())


def described() -> Iterator[tuple[str, str, str]]:
    for path, methods in OPENAPI["paths"].items():
        for method, operation in methods.items():
            yield operation["tags"][0], path, method


@lived
async def test_every_path_and_method_is_documented():
    assert sorted(served()) == sorted(described())
    for listener, path, _ in described():
        assert path.startswith(f"/{codec.VERSION}/") == (listener != "health")


def test_openapi_is_up_to_date(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["write-openapi", "--check"])
    with loaded("write-openapi") as script:
        assert script.main() == 0, "run scripts/write-openapi"


def test_references_resolve():
    def references(part: Any) -> Iterator[str]:
        if isinstance(part, dict):
            yield from (value for key, value in part.items() if key == "$ref")
            part = list(part.values())
        if isinstance(part, list):
            for item in part:
                yield from references(item)

    for reference in references(OPENAPI):
        found = OPENAPI
        for step in reference.removeprefix("#/").split("/"):
            found = found[step]
    assert {message.__name__ for message in MESSAGES} <= set(OPENAPI["components"]["schemas"])


def test_refusals_have_their_documented_status():
    rows = re.findall(r"^\| (\d{3}) \| `(\w+)` \|", PROTOCOL, flags=re.MULTILINE)
    assert {(int(status), name) for status, name in rows} == {
        (int(STATUS[error]), error.value) for error in Refused
    }


def test_every_problem_is_documented():
    [section] = re.findall(r"## Problems\n(.*?)\n## ", PROTOCOL, flags=re.DOTALL)
    rows = re.findall(r"^\| (`.*?) \|", section, flags=re.MULTILINE)
    listed = [name for row in rows for name in re.findall(r"`(\w+)`", row)]
    own = (STUCK, UNCONFIRMED, TOO_SLOW, LIVE_CHANGE_FAILED, CERTIFICATES)
    known = {*REMEDIES, *(problem.name for problem in own)}
    assert sorted(listed) == sorted({*known, "TrainingFailed"})


def test_diagram_matches_the_table():
    [drawn] = re.findall(r"```mermaid\n(.*?)```", PROTOCOL, flags=re.DOTALL)
    assert drawn == draw()


def test_examples_can_be_decoded():
    examples = re.findall(r"```json\n(.*?)```", PROTOCOL, flags=re.DOTALL)
    targets = [codec.decode_target(text.replace("…", "").encode()) for text in examples]
    assert [type(target).__name__ for target in targets] == ["Run", "Stop"]
