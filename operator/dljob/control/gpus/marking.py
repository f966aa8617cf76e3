"""Marks GPUs that must not be given away on their nodes, with the reason."""

from collections.abc import Mapping
from dataclasses import replace

from dljob.core.model import GpuRef, Node


def marked(node: Node, unavailable: Mapping[GpuRef, str]) -> Node:
    """Mark these GPUs; return the same object if there are none."""
    taken_out = {}
    for gpu in node.gpus:
        because = unavailable.get(GpuRef(node.name, gpu.index), "")
        if because and not gpu.unavailable_because:
            taken_out[gpu.index] = replace(gpu, unavailable_because=because)
    if not taken_out:
        return node
    return replace(node, gpus=tuple(taken_out.get(gpu.index, gpu) for gpu in node.gpus))
