"""The layer of examples/gpu/gemm_reduce_scatter.cpp in PyTorch over NCCL: one product, then a reduce-scatter of its rows.

    torchrun --nproc-per-node 2 bench/gpu/torch_gemm_reduce_scatter.py [--M 8192] [--N 4096] [--K 11008] [--iters 20] [--warmup 5]

Prints rank 0's time per call, the median of nine rounds of `--iters` calls.
"""

import torch
import torch.distributed as dist
import torch_layers as layers


def main():
    args = layers.arguments(M=8192, N=4096, K=11008)
    world = layers.join()
    a = layers.numbers(args.M, args.K // world)
    weights = layers.numbers(args.N, args.K // world)
    parts = layers.empty(args.M, args.N)
    c = layers.empty(args.M // world, args.N)

    def call():
        torch.mm(a, weights.t(), out=parts)
        dist.reduce_scatter_tensor(c, parts)

    layers.measure("PyTorch, GEMM, then reduce-scatter", call, args)


if __name__ == "__main__":
    main()
