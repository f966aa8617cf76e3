"""
Learns to read digits with plain numpy, in as many processes as it is given.

Each step averages the gradients of all processes, so that the global batch stays the same whatever
their number is. On SIGUSR1 the first process saves; a new start goes on from there.
"""

import argparse
import os
import pathlib
import signal
import socket
import time
from multiprocessing.connection import Client, Listener

import numpy as np

# Each digit is five rows of three points; a row is written as the number its points make.
GLYPHS = ["75557", "26227", "71747", "71717", "55711", "74717", "74757", "71122", "75757", "75717"]


def make_digits(count, random):
    """Draw digits of 3 x 5 points somewhere into images of 8 x 8, and dirty them."""
    labels = random.integers(10, size=count)
    images = random.normal(0.0, 0.25, (count, 8, 8))
    for image, label in zip(images, labels):
        glyph = np.array([[int(point) for point in f"{int(row):03b}"] for row in GLYPHS[label]])
        y, x = random.integers(2, 4), random.integers(2, 5)
        image[y : y + 5, x : x + 3] += 1.5 * glyph
    return images.reshape(count, 64), labels


def find_gradients(weights, images, labels):
    """Return loss and gradients of a network with one hidden layer, summed over the images."""
    hidden = np.maximum(images @ weights[0], 0.0)
    scores = hidden @ weights[1]
    shares = np.exp(scores - scores.max(axis=1, keepdims=True))
    shares /= shares.sum(axis=1, keepdims=True)
    loss = -np.log(shares[np.arange(len(labels)), labels]).sum()
    shares[np.arange(len(labels)), labels] -= 1.0
    return loss, images.T @ ((shares @ weights[1].T) * (hidden > 0)), hidden.T @ shares


def meet(rank, world, address):
    """Connect the first process with all the others."""
    peers = []
    if rank == 0:
        with Listener(address, backlog=world) as listener:
            peers = [listener.accept() for _ in range(1, world)]
    while not peers:
        try:
            peers = [Client(address)]
        except ConnectionRefusedError:
            time.sleep(0.01)
    for peer in peers:
        # Otherwise the end of each message waits for the acknowledgement of its beginning.
        with socket.socket(fileno=os.dup(peer.fileno())) as connection:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return peers


def add_up(rank, peers, values):
    """Return the sum over all processes; the first one adds and tells the others."""
    if rank > 0:
        peers[0].send(values)
        return peers[0].recv()
    for theirs in [peer.recv() for peer in peers]:
        values = [one + other for one, other in zip(values, theirs)]
    for peer in peers:
        peer.send(values)
    return values


def main():
    options = argparse.ArgumentParser()
    options.add_argument("--iterations", type=int, default=2000)
    options.add_argument("--batch", type=int, default=64)
    options.add_argument("--checkpoints", type=pathlib.Path, default=".")
    options = options.parse_args()
    rank, world = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    address = (
        os.environ.get("MASTER_ADDR", "127.0.0.1"),
        int(os.environ.get("MASTER_PORT", "29500")),
    )

    wanted = []
    signal.signal(signal.SIGUSR1, lambda *_: wanted.append(True))
    random = np.random.default_rng(0)
    images, labels = make_digits(6000, random)
    weights, begin = [random.normal(0, 0.1, (64, 48)), random.normal(0, 0.1, (48, 10))], 0
    options.checkpoints.mkdir(parents=True, exist_ok=True)
    saved = options.checkpoints / "latest.npz"
    if saved.exists():
        with np.load(saved) as file:
            weights, begin = [file["first"], file["second"]], int(file["iteration"])

    peers = meet(rank, world, address) if world > 1 else []
    for iteration in range(begin, options.iterations):
        # The same batch everywhere; each process takes its part of it.
        batch = np.random.default_rng(iteration).integers(5000, size=options.batch)[rank::world]
        loss, *gradients = add_up(
            rank, peers, find_gradients(weights, images[batch], labels[batch])
        )
        for place, gradient in enumerate(gradients):
            weights[place] -= 0.1 * gradient / options.batch
        if rank == 0:
            print(f"step {iteration + 1} loss={loss / options.batch:.9f}", flush=True)
        if rank == 0 and (wanted or iteration + 1 == options.iterations):
            wanted.clear()
            temporary = saved.with_suffix(".part.npz")
            np.savez(temporary, first=weights[0], second=weights[1], iteration=iteration + 1)
            temporary.replace(saved)
    right = (np.maximum(images[5000:] @ weights[0], 0) @ weights[1]).argmax(1) == labels[5000:]
    if rank == 0:
        print(f"done accuracy={right.mean():.4f}", flush=True)


if __name__ == "__main__":
    main()
