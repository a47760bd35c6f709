"""Throughput of torch's pipeline schedule 1F1B over parley and over torch's own backend, in turns in one run. Two stages of a transformer.

    torchrun --nproc-per-node 2 bench/python/pipeline.py                   # on the host, beside gloo
    torchrun --nproc-per-node 2 bench/python/pipeline.py --device cuda     # beside NCCL, where parley has tensors of GPUs

Prints, for each width, the microbatches per second of both (median over rounds) and their ratio, once the losses have the same bits.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time

import torch
import torch.distributed as dist
from torch.distributed.pipelining import PipelineStage, Schedule1F1B

import parley.torch  # noqa: F401

MICROBATCHES, WORDS = 8, 1000


def blocks(width: int, layers: int) -> list[torch.nn.Module]:
    """A transformer with random weights, equal on all ranks."""
    torch.manual_seed(1)
    made: list[torch.nn.Module] = [torch.nn.Embedding(WORDS, width)]
    made += [torch.nn.TransformerEncoderLayer(width, 4, 4 * width, dropout=0.0, batch_first=True) for _ in range(layers)]
    return [*made, torch.nn.Linear(width, WORDS)]


def loss_of(scores: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.cross_entropy(scores.flatten(0, 1), target.flatten())


class Pipeline:
    """One stage of the transformer, over one group."""

    def __init__(self, group: dist.ProcessGroup, device: torch.device, width: int, layers: int) -> None:
        self.rank, self.count = dist.get_rank(), dist.get_world_size()
        self.device = device
        whole = blocks(width, layers)
        share = len(whole) // self.count
        mine = whole[self.rank * share:] if self.rank == self.count - 1 else whole[self.rank * share:(self.rank + 1) * share]
        self.module = torch.nn.Sequential(*mine).to(device)
        stage = PipelineStage(self.module, self.rank, self.count, device, group=group)
        self.schedule = Schedule1F1B(stage, n_microbatches=MICROBATCHES, loss_fn=loss_of)

    def step(self, words: torch.Tensor) -> list[torch.Tensor]:
        losses: list[torch.Tensor] = []
        self.module.zero_grad()
        if self.rank == 0:
            self.schedule.step(words)
        elif self.rank == self.count - 1:
            self.schedule.step(target=words, losses=losses)
        else:
            self.schedule.step()
        if self.device.type == "cuda":
            torch.cuda.synchronize()
        return losses


def measured(device: torch.device, width: int, layers: int, rounds: int, groups: dict[str, dist.ProcessGroup]) -> None:
    torch.manual_seed(2)
    words = torch.randint(WORDS, (2 * MICROBATCHES, 64), device=device)
    pipelines = {name: Pipeline(group, device, width, layers) for name, group in groups.items()}
    for _ in range(10):  # parley agrees meanwhile
        losses = {name: pipeline.step(words) for name, pipeline in pipelines.items()}
    own, other = losses.values()
    if not all(torch.equal(a, b) for a, b in zip(own, other, strict=True)):
        raise SystemExit("the losses differ")
    seconds: dict[str, list[float]] = {name: [] for name in groups}
    for _ in range(rounds):
        for name, pipeline in pipelines.items():
            dist.barrier()
            began = time.perf_counter()
            for _ in range(5):
                pipeline.step(words)
            seconds[name].append((time.perf_counter() - began) / 5)
    if dist.get_rank() == 0:
        rates = {name: MICROBATCHES / statistics.median(times) for name, times in seconds.items()}
        (parleys, others), name = list(rates.values()), list(rates)[1]
        print(f"width {width:5}  activation {2 * 64 * width * 4 >> 10:6} KiB  parley {parleys:9.1f}/s  {name} {others:9.1f}/s  ratio "
              f"{parleys / others:.2f}", flush=True)


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    options.add_argument("--widths", type=int, nargs="*", default=[64, 256, 1024])
    options.add_argument("--layers", type=int, default=2)
    options.add_argument("--rounds", type=int, default=11)
    chosen = options.parse_args()
    device = torch.device(chosen.device, int(os.environ["LOCAL_RANK"]) if chosen.device == "cuda" else None)
    if chosen.device == "cuda":
        torch.cuda.set_device(device)
    torch.set_num_threads(1)
    peer = "gloo" if chosen.device == "cpu" else "nccl"
    dist.init_process_group(peer)
    groups = {"parley": dist.new_group(backend="parley"), peer: dist.group.WORLD}
    for width in chosen.widths:
        measured(device, width, chosen.layers, chosen.rounds, groups)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
