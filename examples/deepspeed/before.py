"""
A training loop with DeepSpeed, as its documentation shows it.

deepspeed train.py --out checkpoints
"""

import argparse

import deepspeed
import torch
from torch.utils.data import TensorDataset


def make_data(count=4096):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(count, 32, generator=generator)
    y = (x[:, :4].sum(dim=1, keepdim=True) > 0).float()
    return TensorDataset(x, y)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", default="checkpoints")
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--save-every", type=int, default=500)
    args = parser.parse_args()

    deepspeed.init_distributed("nccl" if torch.cuda.is_available() else "gloo")
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1))
    config = {
        "train_batch_size": args.batch,
        "optimizer": {"type": "Adam", "params": {"lr": 1e-3, "torch_adam": True}},
        "zero_optimization": {"stage": 0},
    }
    engine, _, loader, _ = deepspeed.initialize(
        model=net,
        model_parameters=net.parameters(),
        training_data=make_data(),
        config=config,
    )
    out = args.out
    engine.load_checkpoint(out)
    rank, world, step = engine.global_rank, engine.world_size, engine.global_steps
    print(f"rank {rank} of {world} begins at step {step}", flush=True)

    criterion = torch.nn.BCEWithLogitsLoss()
    while step < args.steps:
        for x, y in loader:
            loss = criterion(engine(x.to(engine.device)), y.to(engine.device))
            engine.backward(loss)
            engine.step()
            step = engine.global_steps
            if rank == 0 and step % 10 == 0:
                print(f"step {step} loss={loss.item():.4f}", flush=True)
            if step % args.save_every == 0 or step == args.steps:
                engine.save_checkpoint(out)
            if step == args.steps:
                break


if __name__ == "__main__":
    main()
