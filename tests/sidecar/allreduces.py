"""
A training with the real Horovod, as its users write it: it knows nothing but ``hvd``.

``python allreduces.py TOKEN`` adds up over all processes, says what it got, and goes on.
"""

# ruff: noqa: T201 - its output is what it is for
from __future__ import annotations

import time

import horovod.torch as hvd  # type: ignore[import-not-found]
import torch


def main() -> None:
    hvd.init(process_sets="dynamic")
    if hvd.size() > 1:
        # Some of them meet once more, in scopes of their own.
        hvd.add_process_set([hvd.size() - 1])
    place = f"{hvd.rank()}/{hvd.size()} {hvd.local_rank()}/{hvd.local_size()}"
    step = 0
    while True:
        step += 1
        total = hvd.allreduce(torch.tensor([hvd.rank() + 1.0]), op=hvd.Sum)
        if step == 1:
            print(f"rank {place} cross {hvd.cross_rank()}/{hvd.cross_size()} sum {total.item():g}")
        print(f"step {step}", flush=True)
        time.sleep(0.05)


if __name__ == "__main__":
    main()
