"""
Learns to tell ten kinds of images apart with a small network, on as many GPUs as it is given.

MirroredStrategy keeps a copy of the network on each GPU and adds up their gradients. The global
batch is the same whatever their number is. On SIGUSR1 it saves; a new start goes on from there.
Without GPUs the processor plays them, each of those that are named a part of it.
"""

import argparse
import os
import signal

import numpy as np
import tensorflow as tf


def find_devices():
    """Return the GPUs that may be used, or as many parts of the processor."""
    if tf.config.list_physical_devices("GPU"):
        return [gpu.name for gpu in tf.config.list_logical_devices("GPU")]
    parts = len(os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(","))
    [cpu] = tf.config.list_physical_devices("CPU")
    part = tf.config.LogicalDeviceConfiguration()
    tf.config.set_logical_device_configuration(cpu, [part] * parts)
    return [one.name for one in tf.config.list_logical_devices("CPU")]


def make_model():
    """Make the same network everywhere."""
    tf.keras.utils.set_random_seed(0)
    layers = tf.keras.layers
    return tf.keras.Sequential(
        [
            layers.Input((16, 16, 3)),
            layers.Conv2D(16, 3, activation="relu"),
            layers.MaxPooling2D(),
            layers.Conv2D(32, 3, activation="relu"),
            layers.Flatten(),
            layers.Dense(10),
        ]
    )


def make_batch(iteration, count):
    """Draw images of ten kinds, each a pattern under noise; the same ones for the same iteration."""
    patterns = np.random.default_rng(0).normal(size=(10, 16, 16, 3))
    random = np.random.default_rng(iteration + 1)
    labels = random.integers(10, size=count)
    images = patterns[labels] + 2.0 * random.normal(size=(count, 16, 16, 3))
    return images.astype(np.float32), labels


def main():
    options = argparse.ArgumentParser()
    options.add_argument("--iterations", type=int, default=400)
    options.add_argument("--batch", type=int, default=64)
    options.add_argument("--checkpoints", default="checkpoints")
    options = options.parse_args()
    wanted = []
    signal.signal(signal.SIGUSR1, lambda *_: wanted.append(True))

    strategy = tf.distribute.MirroredStrategy(find_devices())
    with strategy.scope():
        model = make_model()
        optimizer = tf.keras.optimizers.SGD(0.01, momentum=0.9)
        optimizer.build(model.trainable_variables)
    done = tf.Variable(0, dtype=tf.int64)
    saved = tf.train.Checkpoint(model=model, optimizer=optimizer, done=done)
    manager = tf.train.CheckpointManager(saved, options.checkpoints, max_to_keep=2)
    saved.restore(manager.latest_checkpoint)

    def learn(images, labels):
        """Take one step on the part of a batch that one copy of the network gets."""
        with tf.GradientTape() as tape:
            losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, model(images))
            loss = tf.nn.compute_average_loss(losses, global_batch_size=options.batch)
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables))
        return loss

    @tf.function
    def step(images, labels):
        return strategy.reduce("SUM", strategy.run(learn, (images, labels)), axis=None)

    copies = strategy.num_replicas_in_sync
    print(f"{copies} copies of the network learn together", flush=True)
    for iteration in range(int(done), options.iterations):
        parts = [np.array_split(whole, copies) for whole in make_batch(iteration, options.batch)]
        images, labels = (
            strategy.experimental_distribute_values_from_function(
                lambda copy, part=part: tf.constant(part[copy.replica_id_in_sync_group])
            )
            for part in parts
        )
        loss = step(images, labels)
        done.assign(iteration + 1)
        print(f"step {iteration + 1} loss={loss:.6f}", flush=True)
        if wanted or iteration + 1 == options.iterations:
            wanted.clear()
            manager.save()


if __name__ == "__main__":
    main()
