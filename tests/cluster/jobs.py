"""Jobs for real nodes: the replayed training of ``examples/replay``, in its own image."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import yaml

from tests.servers.api import Json
from tests.servers.images import TRAINER

GPU_TYPE = "A100"
"""The type of the replayed speeds."""

SAVED = "/ckpt"
"""The shared folder in containers."""


def replay(
    name: str,
    options: Iterable[int],
    folder: Path,
    *,
    iterations: int = 1_000_000,
    faster: float = 4.0,
    **spec: Any,
) -> Json:
    """A job that replays ResNet-50, by default longer than any test, with checkpoints in a shared folder."""
    command = [
        *("python", "/app/examples/replay/train.py", "--speeds=/app/throughput.csv"),
        *(f"--gpu-type={GPU_TYPE}", f"--iterations={iterations}", f"--faster={faster:g}"),
        f"--checkpoint={SAVED}/{name}/iteration",
    ]
    trainer = {
        "name": "trainer",
        "image": TRAINER,
        "imagePullPolicy": "Never",
        "command": command,
        "volumeMounts": [{"name": "saved", "mountPath": SAVED}],
    }
    saved = {"name": "saved", "hostPath": {"path": str(folder), "type": "DirectoryOrCreate"}}
    usual: Json = {
        "gpus": {"options": list(options)},
        "framework": "none",
        "processes": "perNode",
        "training": {"iterations": iterations, "batchSize": 256},
        "profile": {"model": "resnet50", "dataset": "imagenet"},
        "progress": {"log": r"step (?P<iteration>\d+)"},
        "checkpoint": {
            "signal": "SIGUSR1",
            "confirm": "file",
            "complete": "rename",
            "path": f"{SAVED}/{name}",
            "shared": True,
            "timeoutSeconds": 30,
            "graceSeconds": 3,
        },
        "template": {"spec": {"containers": [trainer], "volumes": [saved]}},
    }
    return {
        "apiVersion": "dljob.io/v1alpha1",
        "kind": "DLJob",
        "metadata": {"name": name},
        "spec": {**usual, **spec},
    }


def trainer_of(manifest: Json) -> Json:
    container: Json = manifest["spec"]["template"]["spec"]["containers"][0]
    return container


def as_text(*manifests: Json) -> str:
    return yaml.safe_dump_all(manifests)
