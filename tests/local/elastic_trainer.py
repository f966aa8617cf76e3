"""
A training for :mod:`tests.local.test_batches`: it registers for live changes, and has no checkpoint.

``elastic_trainer.py STEPS FOLDER``: each process writes its parts of the global batches to a file of its own in FOLDER:
the step, the global batch size, the factor for the learning rate, and the samples. It ends when FOLDER/end is there.
"""

import os
import sys
import time
from pathlib import Path

from dljob import training

batches = training.batches(800, 8, seed=1, steps=int(sys.argv[1]))
training.live(batches)
with Path(sys.argv[2], str(os.getpid())).open("w", encoding="utf-8") as log:
    for batch in batches:
        # Slow until it has grown, so that a change comes in time on a busy machine, too.
        time.sleep(0.02 if training.world_size() == 1 else 0.002)
        place = (batch.step, training.batch_size(8), training.learning_rate_factor())
        print(*place, *(batch.samples if batch.weight else ()), file=log, flush=True)
        if training.is_leader():
            os.write(1, f"iteration {batches.iterations}\n".encode())
        training.boundary(batch.step)
    while not Path(sys.argv[2], "end").exists():
        time.sleep(0.02)
