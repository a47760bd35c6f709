"""The layer of examples/gpu/all_gather_gemm.cpp in PyTorch over NCCL: an all-gather of rows, then one product.

    torchrun --nproc-per-node 2 bench/gpu/torch_all_gather_gemm.py [--M 8192] [--N 11008] [--K 4096] [--iters 20] [--warmup 5]

Prints rank 0's time per call, the median of nine rounds of `--iters` calls.
"""

import torch
import torch.distributed as dist
import torch_layers as layers


def main():
    args = layers.arguments(M=8192, N=11008, K=4096)
    world = layers.join()
    mine = layers.numbers(args.M // world, args.K)
    weights = layers.numbers(args.N // world, args.K)
    a = layers.empty(args.M, args.K)
    c = layers.empty(args.M, args.N // world)

    def call():
        dist.all_gather_into_tensor(a, mine)
        torch.mm(a, weights.t(), out=c)

    layers.measure("PyTorch, all-gather, then GEMM", call, args)


if __name__ == "__main__":
    main()
