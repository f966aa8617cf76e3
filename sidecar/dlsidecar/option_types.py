"""The types of the SideCar's options: each reads one text of the command line, or says what is wrong with it."""

from __future__ import annotations

import argparse
import json
import re
import signal
from typing import Any

from dlwire.endpoints import Endpoint, read_endpoint


def choices_of(enumeration: Any) -> list[str]:
    return [word.value for word in enumeration]


def read_seconds(text: str) -> float:
    seconds = float(text)
    if not 0 <= seconds <= 1e7:
        raise argparse.ArgumentTypeError(f"{text} is not a time in seconds from 0 to 10000000")
    return seconds


def read_count(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= 4):
        raise argparse.ArgumentTypeError(f"{text} is not a whole number from 0 to 9999")
    return int(text)


def read_mebibytes(text: str) -> int:
    if not (text.isascii() and text.isdigit() and 1 <= int(text) <= 1 << 30):
        raise argparse.ArgumentTypeError(f"{text} is not a whole number of MiB from 1 on")
    return int(text) << 20


def read_list(text: str) -> tuple[str, ...]:
    return tuple(part for part in (part.strip() for part in text.split(",")) if part)


def read_signal(text: str) -> str:
    if text.upper() not in signal.Signals.__members__:
        raise argparse.ArgumentTypeError(
            f"{text} is not the name of a signal; write one such as SIGUSR1"
        )
    return text.upper()


def read_pattern(text: str) -> str:
    parts = text.split("/")
    if not text or text.startswith("/") or ".." in parts:
        raise argparse.ArgumentTypeError(
            f"{text} is no pattern below --checkpoint-path; write one such as checkpoint-*"
        )
    return text


def read_file_name(text: str) -> str:
    if not text or "/" in text:
        raise argparse.ArgumentTypeError(f"{text} is no name of a file; write one such as DONE")
    return text


def read_words(text: str) -> tuple[str, ...]:
    try:
        words = json.loads(text)
    except ValueError:
        words = None
    if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
        raise argparse.ArgumentTypeError(f'{text} is no list of words such as ["sh", "save.sh"]')
    return tuple(words)


def read_hook(text: str) -> str:
    if not re.fullmatch(r"[1-9][0-9]{0,4}/[\x21-\x7e]*", text):
        raise argparse.ArgumentTypeError(f"{text} is no hook; write PORT/PATH, as in 8080/save")
    return text


def read_address(text: str) -> Endpoint:
    try:
        return read_endpoint(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error
