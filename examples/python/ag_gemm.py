"""All-gather and matrix product, tuned together: shards arrive while the first of them are multiplied.

    python -m parley run -n 2 examples/python/ag_gemm.py [--rows 128] [--inner 256] [--columns 256]

Each rank has a shard of the rows of A, and all of B; it wants all of A B. The product of a shard has several implementations. How fast each
is depends on what else happens: messages arrive, and other ranks compute. So the whole function runs again and again while the kernel tries
one implementation per run, and then all ranks run the one whose average on the slowest rank is the shortest. `.autotune_logs` has each run.

What had to change from the way that Triton-distributed writes it, and why:
- The decorator has the same name and arguments. What it tunes is a `parley.Kernel` with named implementations, and not a function under
  `@triton.autotune`: an implementation may be any function, and parley asks it for nothing but to be called.
- There, a producer on another stream copies shards while the kernel on this stream waits for each of them on the device. Here a shard is a
  message into the memory of the host, and its `Work` is waited for before its product. A `P2P` with `device="cuda"` would move it between GPUs.
- With a GPU, torch and Triton, two tilings of a Triton kernel are further implementations; they copy to the GPU and back
  (triton_multiply.py). Where an implementation fails, it is left out on all ranks.
- `outputs` names what the kernel writes, so that a wrong implementation can be found (`set_numerical_check_tolerances`).
"""

import argparse
import glob
import os
from collections.abc import Callable

import numpy as np

import parley

words = argparse.ArgumentParser(description="All-gather and matrix product, tuned together.")
words.add_argument("--rows", type=int, default=128, help="of a shard of A")
words.add_argument("--inner", type=int, default=256)
words.add_argument("--columns", type=int, default=256)
options = words.parse_args()

Multiply = Callable[[np.ndarray, np.ndarray, np.ndarray], object]


def whole(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> None:
    np.matmul(a, b, out=c)


def in_blocks(of: int) -> Multiply:
    def multiply(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> None:
        for row in range(0, len(a), of):
            np.matmul(a[row:row + of], b, out=c[row:row + of])
    return multiply


def on_a_gpu() -> dict[str, Multiply]:
    """Triton's, if there is a GPU for them. Without one, torch is not even imported, which takes seconds."""
    if not glob.glob("/dev/nvidia[0-9]*") and "TRITON_INTERPRET" not in os.environ:
        return {}
    try:
        import triton_multiply
    except ImportError:
        return {}
    return triton_multiply.implementations()


def shard_of(rank: int) -> np.ndarray:
    return np.random.default_rng(rank).integers(-4, 5, (options.rows, options.inner)).astype(np.float32)


def main(rank: parley.Rank) -> None:
    n, me = rank.world_size, rank.id
    shards = parley.P2P(rank, "shards", configs=["direct", "chunked(chunk_bytes=64KiB)"])
    ways = {"whole": whole, "blocks(rows=16)": in_blocks(16), "blocks(rows=64)": in_blocks(64), **on_a_gpu()}
    multiply = parley.Kernel(rank, "multiply", ways,
                             key=lambda a, b, c: {"m": len(a), "n": b.shape[1], "k": len(b)}, outputs=lambda a, b, c: c)
    everything = np.zeros((n, options.rows, options.inner), np.float32)
    everything[me] = shard_of(me)
    b = np.random.default_rng(99).integers(-4, 5, (options.inner, options.columns)).astype(np.float32)
    product = np.zeros((n, options.rows, options.columns), np.float32)

    @parley.contextual_autotune(is_dist=True, n_repeat=3, n_warmup=1)
    def ag_gemm() -> np.ndarray:
        others = [(me + step) % n for step in range(1, n)]
        arriving = {r: shards.start([shards.irecv(everything[r], source=r)]) for r in others}
        leaving = [shards.start([shards.isend(everything[me], to=r)]) for r in others]
        multiply(everything[me], b, product[me])
        for r in others:
            arriving[r].wait()
            multiply(everything[r], b, product[r])
        for each in leaving:
            each.wait()
        return product

    for _ in range(3):
        product[:] = -1
        ag_gemm()
        for r in range(n):
            if not (product[r] == shard_of(r) @ b).all():
                raise ValueError(f"the product of shard {r} is wrong")
    for kernel, key, best, ms in parley.tunable.get_results():
        print(f"rank {me}: {kernel}, {key}: {best}, {ms:.3g} ms on the slowest rank")


if __name__ == "__main__":
    raise SystemExit(parley.run(main))
