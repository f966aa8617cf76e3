"""``kubectl`` as a user types it."""

import os
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

LIMIT_SECONDS = 300.0


class Said(NamedTuple):
    """The output of a command, and its exit status."""

    code: int
    out: str
    err: str


class KubectlFailed(Exception):
    """A command failed; the message is its output."""


class Kubectl:
    """
    Commands in the name of a kubeconfig's user, also of other programs that read it, such as Helm.

    ``kubectl("get", "dljobs")`` returns what it prints and raises :class:`KubectlFailed`;
    ``kubectl.try_to(…)`` returns how it went.
    """

    def __init__(
        self,
        program: Path,
        kubeconfig: Path,
        *,
        namespace: str = "",
        seconds: float = LIMIT_SECONDS,
    ) -> None:
        self._program = program
        self._kubeconfig = kubeconfig
        self._namespace = namespace
        self._seconds = seconds
        # kubectl caches answers of the server in its home, which must not be the user's here.
        self._home = kubeconfig.parent / "home"

    @property
    def folder(self) -> Path:
        return self._program.parent

    def in_namespace(self, namespace: str) -> "Kubectl":
        """The same, with another namespace where none is given."""
        return Kubectl(self._program, self._kubeconfig, namespace=namespace, seconds=self._seconds)

    def __call__(self, *words: str | Path, stdin: str | None = None) -> str:
        said = self.try_to(*words, stdin=stdin)
        if said.code != 0:
            raise KubectlFailed(said.err.strip() or said.out.strip())
        return said.out

    def try_to(self, *words: str | Path, stdin: str | None = None) -> Said:
        ran = subprocess.run(
            self.command(*words),
            input=stdin,
            env=self.environment(),
            capture_output=True,
            text=True,
            check=False,
            timeout=self._seconds,
        )
        return Said(ran.returncode, ran.stdout, ran.stderr)

    def command(self, *words: str | Path) -> list[str | Path]:
        """The words of a command, for a caller that starts it in another way."""
        namespace = [f"--namespace={self._namespace}"] if self._namespace else []
        return [self._program, *namespace, *words]

    def environment(self, others: Mapping[str, str] | None = None) -> dict[str, str]:
        ours = {"KUBECONFIG": str(self._kubeconfig), "HOME": str(self._home), "TERM": "dumb"}
        # A proxy has no business between the tests and their servers.
        theirs = {name: value for name, value in os.environ.items() if "proxy" not in name.lower()}
        return theirs | ours | dict(others or {})
