"""An elastic batch, from a decision of ``ones`` to the environment of a real training process."""

from pathlib import Path

import pytest

from tests.local.ups import find_processes, going, replay

pytestmark = pytest.mark.processes

TOLD = ("DLJOB_BATCH_SIZE", "DLJOB_PROCESS_BATCH_SIZE", "DLJOB_LEARNING_RATE_FACTOR")


def batches_told(root: Path) -> set[tuple[str, ...]]:
    """Return the batch settings in the environments of the processes below ``root``."""
    found = set()
    for pid in find_processes(root):
        try:
            raw = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        except OSError:
            continue  # It has just ended.
        environment = dict(line.decode().split("=", 1) for line in raw if b"=" in line)
        if TOLD[0] in environment:
            found.add(tuple(environment[name] for name in TOLD))
    return found


@pytest.mark.xfail(
    reason="controllers run the brain's policies, and ones is a simulation's", strict=True
)
def test_a_job_that_grows_gets_its_larger_batch(root):
    spec = {
        "gpus": {"options": [1, 2], "requested": 1},
        "training": {"iterationsPerEpoch": 50, "epochs": 20_000, "batchSize": 256},
        "batch": {"elastic": True, "max": 512},
        "processes": "perGpu",
    }
    with going(root / "state", "--virtual-gpus", 2, "--policy", "ones") as up:
        submitted = up.submit(replay("long", root, iterations=10**6, faster=20.0, **spec))
        assert submitted.status == 0, submitted.stderr
        up.until(lambda: ("256", "256", "1.0") in batches_told(root))
        # After its first epoch it gets the other GPU, and each process keeps its part.
        up.until(lambda: ("512", "256", "2.0") in batches_told(root))
        assert up.backend.get_job("long")["status"]["allocation"]["batchSize"] == 512
