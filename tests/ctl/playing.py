"""The real command in front of a played ``dljob up``."""

from pathlib import Path
from typing import Any

import yaml

from tests.ctl.running import Command, Result
from tests.local.stages import Staged, job_document


class Played:
    """A ``dljob up`` that a test plays, and the command that asks it."""

    def __init__(self, dljob: Command, up: Staged, folder: Path) -> None:
        self._dljob = dljob
        self.up = up
        self.folder = folder

    def __call__(self, *words: object) -> Result:
        """Run the command; ``--state`` is put where options may stand."""
        place = words.index("--") if "--" in words else len(words)
        return self._dljob(*words[:place], "--state", self.up.root, *words[place:])

    def file(self, *documents: Any, name: str = "jobs.yaml") -> Path:
        path = self.folder / name
        path.write_text("---\n".join(yaml.safe_dump(each) for each in documents), encoding="utf-8")
        return path

    def submit(self, *names: str, **spec: Any) -> None:
        result = self("submit", self.file(*(job_document(name, **spec) for name in names)))
        assert result.status == 0, result.stderr

    def do(self, method: str, *args: Any, **kwargs: Any) -> None:
        """Let the controller do something: ``played.do("give", "a", {"n1": (0,)})``."""
        self.up.do(lambda stage: getattr(stage, method)(*args, **kwargs))
