"""
Learns to read dirty digits with plain numpy, in as many processes as it is given.

Each step adds up the gradients of all processes, so that the global batch stays the same whatever
their number is. On SIGUSR1 the first process saves; a new start goes on from there.
"""

import argparse
import os
import pathlib
import signal
import time
from multiprocessing.connection import Client, Listener

import numpy as np

# Each digit is five rows of three points; a row is written as the number its points make.
GLYPHS = ["75557", "26227", "71747", "71717", "55711", "74717", "74757", "71122", "75757", "75717"]
POINTS = np.array([[[int(row) >> shift & 1 for shift in (2, 1, 0)] for row in g] for g in GLYPHS])
RATE = 0.3


def find_gradients(first, second, images, labels):
    """Return loss and gradients of a network with one hidden layer, summed over the images."""
    hidden = np.maximum(images @ first, 0)
    shares = np.exp(hidden @ second)
    shares /= shares.sum(axis=1, keepdims=True)
    loss = -np.log(shares[np.arange(len(labels)), labels]).sum()
    errors = shares - np.eye(10)[labels]
    return loss, images.T @ (errors @ second.T * (hidden > 0)), hidden.T @ errors


def meet(rank, world, address):
    """Connect the first process with all the others."""
    if rank == 0:
        with Listener(address, backlog=world) as listener:
            return [listener.accept() for _ in range(1, world)]
    while True:
        try:
            return [Client(address)]
        except ConnectionRefusedError:
            time.sleep(0.01)


def add_up(rank, peers, values):
    """Return the sum over all processes; the first one adds and tells the others."""
    if rank == 0:
        for theirs in [peer.recv() for peer in peers]:
            values = [one + other for one, other in zip(values, theirs)]
    for peer in peers:
        peer.send(values)
    return values if rank == 0 else peers[0].recv()


def main():
    options = argparse.ArgumentParser()
    options.add_argument("--iterations", type=int, default=2000)
    options.add_argument("--batch", type=int, default=64)
    options.add_argument("--checkpoints", type=pathlib.Path, default=".")
    options = options.parse_args()
    rank, world = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    port = int(os.environ.get("MASTER_PORT", "29500"))
    address = (os.environ.get("MASTER_ADDR", "127.0.0.1"), port)

    wanted = []
    signal.signal(signal.SIGUSR1, lambda *_: wanted.append(True))
    random = np.random.default_rng(0)
    labels = random.integers(10, size=6000)
    images = POINTS.reshape(10, 15)[labels] + random.normal(0, 0.25, (6000, 15))
    first, second, begin = random.normal(0, 0.3, (15, 32)), random.normal(0, 0.3, (32, 10)), 0
    options.checkpoints.mkdir(parents=True, exist_ok=True)
    saved = options.checkpoints / "latest.npz"
    if saved.exists():
        with np.load(saved) as file:
            first, second, begin = file["first"], file["second"], int(file["iteration"])

    peers = meet(rank, world, address) if world > 1 else []
    for iteration in range(begin + 1, options.iterations + 1):
        # The same batch everywhere; each process takes its part of it.
        batch = np.random.default_rng(iteration).integers(5000, size=options.batch)[rank::world]
        gradients = find_gradients(first, second, images[batch], labels[batch])
        loss, for_first, for_second = add_up(rank, peers, gradients)
        first = first - RATE / options.batch * for_first
        second = second - RATE / options.batch * for_second
        if rank == 0:
            print(f"step {iteration} loss={loss / options.batch:.9f}", flush=True)
            if wanted or iteration == options.iterations:
                wanted.clear()
                part = saved.with_suffix(".part.npz")
                np.savez(part, first=first, second=second, iteration=iteration)
                part.replace(saved)
    if rank == 0:
        right = (np.maximum(images[5000:] @ first, 0) @ second).argmax(1) == labels[5000:]
        print(f"done accuracy={right.mean():.4f}", flush=True)


if __name__ == "__main__":
    main()
