"""
The GPUs of this machine, as nodes: what NVML finds, or virtual ones.

Virtual GPUs are numbers that jobs are told. They are right for trying things out, and wherever the
training paces itself; several virtual nodes make jobs over several containers real on one machine.
"""

import logging
import socket
from collections.abc import Callable
from contextlib import suppress

from dlcore.model import Gpu, Node, NodeName

log = logging.getLogger(__name__)


class NoGpus(Exception):
    """There is nothing to schedule on: what was found, and what to do."""


def virtual_node(gpus: int, name: str) -> Node:
    """Pretend that this machine has so many GPUs."""
    return Node.of(name, gpus)


def find_gpus(name: str = "") -> Callable[[], tuple[Node, ...]]:
    """
    Return who tells the GPUs of this machine; raises :class:`NoGpus` if there is none.

    It is called by its host name if no other is given.
    """
    try:
        import pynvml  # noqa: PLC0415 - its import fails where there is no driver at all

        pynvml.nvmlInit()
        count = pynvml.nvmlDeviceGetCount()
    except Exception as error:
        raise NoGpus(
            f"NVML finds no GPU here ({error}); install the NVIDIA driver, or say"
            " --gpus N for virtual ones"
        ) from error
    if count == 0:
        raise NoGpus("this machine has no NVIDIA GPU; say --gpus N for virtual ones")
    node_name = NodeName(name or socket.gethostname())
    node = Node(node_name, tuple(_gpu(pynvml, i) for i in range(count)), _type(pynvml))
    return lambda: (node,)


def _gpu(pynvml: object, index: int) -> Gpu:
    handle = pynvml.nvmlDeviceGetHandleByIndex(index)  # type: ignore[attr-defined]
    uuid = pynvml.nvmlDeviceGetUUID(handle)  # type: ignore[attr-defined]
    return Gpu(index, uuid if isinstance(uuid, str) else uuid.decode())


def _type(pynvml: object) -> str:
    """The model of the first one, as one word, such as ``H200``."""
    with suppress(Exception):
        handle = pynvml.nvmlDeviceGetHandleByIndex(0)  # type: ignore[attr-defined]
        name = pynvml.nvmlDeviceGetName(handle)  # type: ignore[attr-defined]
        text = name if isinstance(name, str) else name.decode()
        return text.removeprefix("NVIDIA ").removeprefix("Tesla ").split()[0].split("-")[0]
    return ""
