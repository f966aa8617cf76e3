"""
Learns to read dirty digits with workers and parameter servers, which the policy coach chooses.

With K GPUs for each worker and one for each server, N processes are N = K * workers + servers, with 1 to K servers. So
each number of GPUs is one choice of both: of 3, 4, 5 and 6 GPUs with K = 2, one or two workers with one or two servers.
Each server has a part of the weights. In each step the processes of the workers send it their gradients of that part,
and get the new weights from it. On SIGUSR1 the first worker saves; a new start, on any number of GPUs, goes on from there.

Two options stand for GPUs where there are none: the seconds of a sample, and of a whole gradient on a server.
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
SHAPES = (15, 32), (32, 10)


def read_options():
    options = argparse.ArgumentParser()
    options.add_argument("--iterations", type=int, default=2000)
    options.add_argument("--batch", type=int, default=64)
    options.add_argument("--gpus-per-worker", type=int, default=2)
    options.add_argument("--servers", type=int, help="instead of those that follow from the GPUs")
    options.add_argument("--sample-seconds", type=float, default=0.0)
    options.add_argument("--gradient-seconds", type=float, default=0.0)
    options.add_argument("--checkpoints", type=pathlib.Path, default=".")
    return options.parse_args()


def split(weights):
    """Return both layers of the flat weights."""
    place = SHAPES[0][0] * SHAPES[0][1]
    return weights[:place].reshape(SHAPES[0]), weights[place:].reshape(SHAPES[1])


def find_gradient(weights, images, labels):
    """Return loss and gradient of a network with one hidden layer, summed over the images."""
    first, second = split(weights)
    hidden = np.maximum(images @ first, 0)
    shares = np.exp(hidden @ second)
    shares /= shares.sum(axis=1, keepdims=True)
    loss = -np.log(shares[np.arange(len(labels)), labels]).sum()
    errors = shares - np.eye(10)[labels]
    gradients = images.T @ (errors @ second.T * (hidden > 0)), hidden.T @ errors
    return loss, np.concatenate([each.ravel() for each in gradients])


def call(address):
    while True:
        try:
            return Client(address)
        except ConnectionRefusedError:
            time.sleep(0.01)


def meet(rank, world, own):
    """Return the addresses of all servers; ``own`` is that of this process, or None."""
    place = os.environ.get("MASTER_ADDR", "127.0.0.1"), int(os.environ.get("MASTER_PORT", "29500"))
    if rank > 0:
        with call(place) as first:
            first.send((rank, own))
            return first.recv()
    with Listener(place, backlog=world) as listener:
        others = [listener.accept() for _ in range(1, world)]
        told = dict(other.recv() for other in others)
        servers = [told[each] for each in sorted(told) if told[each] is not None]
        for other in others:
            other.send(servers)
            other.close()
    return servers


def serve(options, listener, part, workers, servers):
    """Keep a part of the weights: add up the gradients of each step, and tell the new weights."""
    seconds = options.gradient_seconds / servers
    peers = [listener.accept() for _ in range(workers)]
    while True:
        try:
            gradient = 0.0
            for peer in peers:
                gradient = gradient + peer.recv()
                time.sleep(seconds)
        except EOFError:
            return  # The workers have made all steps.
        part = part - RATE / options.batch * gradient
        for peer in peers:
            peer.send(part)


def work(options, servers, start, number, workers):
    """Make the steps of one of the processes of the workers."""
    random = np.random.default_rng(0)
    labels = random.integers(10, size=6000)
    images = POINTS.reshape(10, 15)[labels] + random.normal(0, 0.25, (6000, 15))
    weights, begin = start
    peers = [call(server) for server in servers]
    wanted = []
    signal.signal(signal.SIGUSR1, lambda *_: wanted.append(True))
    for iteration in range(begin + 1, options.iterations + 1):
        # The same batch everywhere; each process takes its part of it.
        batch = np.random.default_rng(iteration).integers(5000, size=options.batch)[number::workers]
        _, gradient = find_gradient(weights, images[batch], labels[batch])
        time.sleep(options.sample_seconds * len(batch))
        for peer, part in zip(peers, np.array_split(gradient, len(peers))):
            peer.send(part)
        weights = np.concatenate([peer.recv() for peer in peers])
        if number == 0:
            loss, _ = find_gradient(weights, images[5000:], labels[5000:])
            print(f"step {iteration} loss={loss / 1000:.9f}", flush=True)
            if wanted or iteration == options.iterations:
                wanted.clear()
                part = options.checkpoints / "latest.part.npz"
                np.savez(part, weights=weights, iteration=iteration)
                part.replace(options.checkpoints / "latest.npz")


def main():
    options = read_options()
    # Only the first worker saves; for the others there is nothing to do.
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    rank, world = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "3"))
    servers = options.servers or (world - 1) % options.gpus_per_worker + 1
    workers = world - servers
    random, begin = np.random.default_rng(1), 0
    weights = random.normal(0, 0.3, sum(rows * columns for rows, columns in SHAPES))
    options.checkpoints.mkdir(parents=True, exist_ok=True)
    saved = options.checkpoints / "latest.npz"
    if saved.exists():
        with np.load(saved) as file:
            weights, begin = file["weights"], int(file["iteration"])
    if rank < workers:
        # The first of them is rank 0, which DLJob asks to save.
        work(options, meet(rank, world, None), (weights, begin), rank, workers)
        return
    with Listener(("127.0.0.1", 0), backlog=world) as listener:
        meet(rank, world, listener.address)
        part = np.array_split(weights, servers)[rank - workers]
        serve(options, listener, part, workers, servers)


if __name__ == "__main__":
    main()
