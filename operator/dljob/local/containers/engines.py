"""
The command lines by which podman and docker run a container.

The SideCar is PID 1 of the container, as on Kubernetes: the kernel ends all other processes with it. The container sees
all GPUs of the machine. The SideCar limits them at each start of the training by ``CUDA_VISIBLE_DEVICES``, so that they
change while the container goes on.
"""

import csv
import io
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from dljob.core.model.jobs import ENGINES

SIDECAR = "/dljob"
"""The folder of the SideCar in the container."""
START = f"{SIDECAR}/sidecar-start"

OF_THE_CLIENT = (
    *("PATH", "HOME", "USER", "LOGNAME", "LANG", "TMPDIR", "TZ"),
    *("XDG_CONFIG_HOME", "XDG_DATA_HOME", "DOCKER_HOST", "DOCKER_CONFIG", "DOCKER_CONTEXT"),
    *("DOCKER_CERT_PATH", "DOCKER_TLS_VERIFY", "CONTAINER_HOST", "CONTAINERS_CONF"),
    *("CONTAINERS_STORAGE_CONF", "CONTAINERS_REGISTRIES_CONF", "REGISTRY_AUTH_FILE"),
)
"""The environment variables that an engine reads."""


@dataclass(frozen=True, slots=True)
class Mount:
    """A folder of the machine that a container sees."""

    source: str
    target: str
    is_writable: bool = True

    def word(self) -> str:
        """Write it for ``--mount``, whose value is a line of CSV."""
        fields = ["type=bind", f"source={self.source}", f"target={self.target}"]
        line = io.StringIO()
        csv.writer(line, lineterminator="").writerow(
            fields if self.is_writable else [*fields, "readonly"]
        )
        return f"--mount={line.getvalue()}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerSpec:
    engine: str
    image: str
    user: tuple[int, int, tuple[int, ...]]
    """User, group and further groups."""
    mounts: tuple[Mount, ...]
    folder: str = "/"
    variables: Mapping[str, str]
    """Variables that are added to the environment of the image."""
    client: Mapping[str, str]
    """The environment of the engine itself."""
    sees_gpus: bool

    def words(self, name: str, command: Sequence[str]) -> list[str]:
        """Return the command that runs the container in the foreground."""
        return [
            *(self.engine, "run", "--rm", f"--name={name}", "--pull=never"),
            # Ranks meet at ports and in shared memory, as they do without a container.
            *("--network=host", "--ipc=host"),
            # SELinux would hide the folders, and changing users' labels is not our business.
            *("--security-opt=label=disable", "--entrypoint=", f"--workdir={self.folder}"),
            *self._identity(),
            *(self._gpus() if self.sees_gpus else ()),
            *(mount.word() for mount in self.mounts),
            *given(self.variables, self.client),
            *(self.image, *command),
        ]

    def environment(self) -> dict[str, str]:
        """Return the environment of the engine, from which the container takes values by name."""
        return {**self.variables, **self.client}

    def _identity(self) -> Iterator[str]:
        user, group, groups = self.user
        if self.engine == "podman" and user != 0:
            # In rootless podman, root in the container is the user outside.
            yield "--user=0:0"
            return
        yield f"--user={user}:{group}"
        yield from (f"--group-add={each}" for each in groups if each != group)

    def _gpus(self) -> tuple[str, ...]:
        return ("--device=nvidia.com/gpu=all",) if self.engine == "podman" else ("--gpus=all",)


def given(variables: Mapping[str, str], client: Mapping[str, str]) -> Iterator[str]:
    """Return the options that pass variables to a container."""
    for name, value in variables.items():
        # All users can read a command line. It has the value only if the engine itself uses another one.
        yield f"--env={name}={value}" if name in client else f"--env={name}"


def find(name: str, path: str) -> str:
    """Return the named engine, or the first known one, if this PATH has it; else an empty string."""
    names = (name,) if name else ENGINES
    return next((each for each in names if shutil.which(each, path=path)), "")


def client_of(variables: Mapping[str, str]) -> dict[str, str]:
    """Choose from an environment what an engine reads."""
    return {name: variables[name] for name in OF_THE_CLIENT if name in variables}
