"""
Read all GPUs by NVML as a SideCar does, and print as JSON what was read last and how long one reading takes.

A program of its own, because a library is looked for where the environment said when a program began.
"""

from __future__ import annotations

import json
import sys
import time
from dataclasses import asdict

from dljob_sidecar.observing.gpus import nvml as gpus

READINGS = 20


def main() -> None:
    reader = gpus.open_gpu_reader()
    if reader.missing:
        sys.exit(reader.missing)
    began = time.perf_counter()
    readings = [reader.read() for _ in range(READINGS)]
    seconds = (time.perf_counter() - began) / READINGS
    reader.close()
    json.dump({"gpus": [asdict(gpu) for gpu in readings[-1]], "seconds": seconds}, sys.stdout)


if __name__ == "__main__":
    main()
