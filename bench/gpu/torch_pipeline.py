"""The schedule of gpu_pipeline in torch.distributed.pipelining: 1F1B, with one process and one GPU per stage.

    torchrun --nproc-per-node 4 bench/gpu/torch_pipeline.py [--num-microbatches 8] [--train-iters 200] [--micro-batch-size 1]
        [--seq-length 512] [--hidden-size 512] [--compute-us 1000]

The options are those of gpu_pipeline. Prints `name value unit` lines like parley's programs.
"""

import argparse
import os
import time

import torch
import torch.distributed as dist
from torch.distributed.pipelining import PipelineStage, Schedule1F1B


def cycles_for(microseconds):
    """The argument with which torch.cuda._sleep lasts that long."""
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    for _ in range(3):
        begin.record()
        torch.cuda._sleep(10_000_000)
        end.record()
        end.synchronize()
    return int(10_000_000 * microseconds / 1e3 / begin.elapsed_time(end))


def stage_of(cycles):
    class Spin(torch.autograd.Function):
        @staticmethod
        def forward(_, x, weight):
            torch.cuda._sleep(cycles)
            return x + weight

        @staticmethod
        def backward(_, gradient):
            torch.cuda._sleep(cycles)
            return gradient * 2, gradient[0, :1]

    class Stage(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = torch.nn.Parameter(torch.ones(1))

        def forward(self, x):
            return Spin.apply(x, self.weight)

    return Stage()


def main():
    parser = argparse.ArgumentParser()
    for name, default in (("num-microbatches", 8), ("train-iters", 200), ("micro-batch-size", 1), ("seq-length", 512),
                          ("hidden-size", 512), ("compute-us", 1000)):
        parser.add_argument(f"--{name}", type=int, default=default)
    given = parser.parse_args()
    elements = given.micro_batch_size * given.seq_length * given.hidden_size
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())
    torch.cuda.set_device(device)
    dist.init_process_group("nccl", device_id=device)
    module = stage_of(cycles_for(given.compute_us)).to(device)
    stage = PipelineStage(module, rank, world, device)
    schedule = Schedule1F1B(stage, n_microbatches=given.num_microbatches, loss_fn=lambda out, target: out.sum())
    batch = torch.ones(given.num_microbatches, elements, device=device)

    def step():
        if rank == 0:
            schedule.step(batch)
        elif rank == world - 1:
            schedule.step(target=batch, losses=[])
        else:
            schedule.step()

    for _ in range(10):
        step()
    torch.cuda.synchronize()
    dist.barrier()
    torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(given.train_iters):
        step()
    torch.cuda.synchronize()
    each = (time.perf_counter() - start) / given.train_iters * 1e9
    if rank == 0:
        computing = 2 * given.num_microbatches * given.compute_us * 1e3
        print(f"torch_pass {each:.0f} ns")
        print(f"torch_idle {100 * (1 - computing / each):.2f} percent")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
