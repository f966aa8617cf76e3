"""Reads a choice of GPUs (``dljob up --gpus``, ``CUDA_VISIBLE_DEVICES``): ``0,2-3`` and UUIDs."""

from collections.abc import Mapping, Sequence

from dljob.local.gpus.nvml import Device

VISIBLE, ORDER = "CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER"
BUS_ORDER = "PCI_BUS_ID"

HOW_TO = "write numbers as nvidia-smi counts them, such as 0,2-3, or UUIDs"
MOST_NUMBER = 4096


class GpuChoiceError(ValueError):
    """The choice names no GPUs of this machine: the reason and the remedy."""


def is_count(text: str) -> bool:
    """Return whether this is a plain number, which means a count of virtual GPUs."""
    return text.isascii() and text.isdigit()


def parse(text: str) -> tuple[str, ...]:
    """Read a list of GPUs, ranges written out; raises :class:`GpuChoiceError`."""
    names: list[str] = []
    # A comma at the end makes a list of one number, which alone would be a count.
    for part in text.removesuffix(",").split(","):
        names += _iter_range(part.strip(), text)
    repeated = next((name for name in names if names.count(name) > 1), None)
    if repeated is not None:
        raise GpuChoiceError(f"{text!r} names GPU {repeated} twice; name each GPU once")
    return tuple(names)


def choose(names: Sequence[str], devices: Sequence[Device]) -> tuple[Device, ...]:
    """Find GPUs by number, UUID or the beginning of a UUID; raises :class:`GpuChoiceError`."""
    chosen = [_find(name, devices) for name in names]
    repeated = next((each for each in chosen if chosen.count(each) > 1), None)
    if repeated is not None:
        raise GpuChoiceError(
            f"GPU {repeated.index} ({repeated.uuid}) is named twice; name each GPU once"
        )
    return tuple(sorted(chosen, key=lambda device: device.index))


def visible(environment: Mapping[str, str], devices: Sequence[Device]) -> tuple[Device, ...] | None:
    """
    Return the GPUs in ``CUDA_VISIBLE_DEVICES``; ``None`` if it is not set.

    By default CUDA numbers GPUs by speed, and NVML by their place on the bus. If the GPUs differ, numbers are ambiguous
    and refused.
    """
    text = environment.get(VISIBLE)
    if text is None:
        return None
    try:
        names = parse(text)
        chosen = choose(names, devices)
    except GpuChoiceError as error:
        raise GpuChoiceError(f"{VISIBLE}: {error}; or unset it, or give --gpus") from error
    are_alike = len({device.model for device in devices}) <= 1
    if not are_alike and environment.get(ORDER) != BUS_ORDER and any(map(is_count, names)):
        raise GpuChoiceError(
            f"{VISIBLE}={text} counts GPUs by speed, and those here differ; set"
            f" {ORDER}={BUS_ORDER}, or name the GPUs by UUID"
        )
    return chosen


def _iter_range(part: str, text: str) -> list[str]:
    if part.startswith("MIG-"):
        raise GpuChoiceError(
            f"{part} is a part of a GPU (MIG), which dljob up does not schedule; name whole GPUs"
        )
    if part.startswith("GPU-") or is_count(part):
        return [str(int(part)) if is_count(part) and len(part) < 6 else part]
    first, dash, last = part.partition("-")
    if not (dash and is_count(first) and is_count(last)):
        raise GpuChoiceError(f"{text!r} names no GPUs; {HOW_TO}")
    if not int(first[:6]) <= int(last[:6]) <= MOST_NUMBER:
        raise GpuChoiceError(f"{part!r} is not a range of GPUs; {HOW_TO}")
    return [str(number) for number in range(int(first), int(last) + 1)]


def _find(name: str, devices: Sequence[Device]) -> Device:
    if is_count(name):
        found = [device for device in devices if str(device.index) == name]
    else:
        found = [device for device in devices if device.uuid.startswith(name)]
    if len(found) == 1:
        return found[0]
    there = ", ".join(f"{device.index} ({device.uuid})" for device in devices)
    what = "there is no such GPU" if not found else "several GPUs begin like that"
    raise GpuChoiceError(f"{name}: {what}; the GPUs of this machine are {there}")
