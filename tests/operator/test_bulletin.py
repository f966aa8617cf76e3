"""The table of GPUs fits into objects of 1 MiB, and a change of one node changes one of them."""

import json

import pytest

from dlkube import names
from dloperator.reporting.gpu_configmap import MOST_BYTES, split

OBJECT_BYTES = 1024 * 1024


def table(nodes: int) -> dict[str, str]:
    """What is said of nodes of eight GPUs, half of which are out for a reason."""
    told = {}
    for number in range(nodes):
        uuids = {str(gpu): f"GPU-{number:08x}-0000-0000-0000-{gpu:012x}" for gpu in range(8)}
        out = {
            str(gpu): "its release is not proven, since node-1 does not answer" for gpu in range(4)
        }
        told[f"gpu-node-{number}.example"] = json.dumps({"uuids": uuids, "out": out})
    return told


@pytest.mark.parametrize(("nodes", "parts"), [(0, 1), (1, 1), (400, 1), (5000, 16)])
def test_as_few_objects_as_hold_it(nodes, parts):
    told = table(nodes)
    texts = split(told)
    assert len(texts) == parts
    assert parts <= len(names.GPUS_PARTS)
    assert all(len(text.encode()) < OBJECT_BYTES for text in texts)
    found: dict[str, object] = {}
    for text in texts:
        found |= json.loads(text)
    assert found == {name: json.loads(each) for name, each in told.items()}


def test_a_change_of_one_node_changes_one_object():
    told = table(2 * MOST_BYTES // len(json.dumps(table(1))))
    before = split(told)
    name = next(iter(told))
    after = split(told | {name: told[name].replace("does not answer", "does never answer")})
    assert len(before) > 1
    assert sum(one != other for one, other in zip(before, after, strict=True)) == 1
