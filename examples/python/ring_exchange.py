"""Two rounds around a ring, with computation during each round, in the callers' own buffers.

    python -m parley run -n 4 examples/python/ring_exchange.py [--rounds 20] [--elements 1048576]

It shows that a program need not say which step waits for which. Each step names the buffers that it reads and writes, and the order
follows: the second send waits for `a`, which waits for y0 to arrive, and so on.

What had to change from the way that the design writes it, and why:
- The design's `kernel(x0, x1, y0, y1)` starts a batch of sends and receives, computes, and waits for the batch. Here both batches and all
  computations go into one flow, with `reads` and `writes`, and nobody waits before the end. Python cannot see which arrays a function
  touches, so the program has to name them.
- Without the names, steps run as soon as they can, and results are wrong, not late. With four ranks and x0 = rank the right answer is
  [13.0009765625, 7.000732421875, 9.00146484375, 15.002197265625]. If the last step does not name y1, it reads zeros:
  [4.0009765625, 3.000732421875, 6.00146484375, 9.002197265625]. If the step before does not name y0: [8.000244140625, 4.000732421875,
  8.001220703125, 12.001708984375].
- Plain functions run on a worker thread, so that messages move on meanwhile.
"""

import argparse

import numpy as np

import parley

words = argparse.ArgumentParser(description="Two rounds around a ring, each with computation at the same time.")
words.add_argument("--rounds", type=int, default=20)
words.add_argument("--elements", type=int, default=1 << 20, help="float32 numbers that each rank sends")
options = words.parse_args()

C = np.float32(1.000244140625)


class Buffers:
    def __init__(self, x0: np.ndarray) -> None:
        self.x0 = x0
        self.t0, self.y0, self.a, self.t1, self.y1, self.out = (np.zeros_like(x0) for _ in range(6))


def x0_of(rank: int) -> np.ndarray:
    return ((17 * rank + np.arange(options.elements)) % 512).astype(np.float32)


def exchange_twice(flow: parley.Dataflow, ring: parley.P2P, left: int, right: int, k: Buffers) -> None:
    flow.exchange(ring, [ring.isend(k.x0, to=right), ring.irecv(k.y0, source=left)])
    flow.compute(lambda: np.add(2 * k.x0, 1, out=k.t0), reads=[k.x0], writes=[k.t0])                 # during the first round
    flow.compute(lambda: np.add(k.y0, k.t0, out=k.a), reads=[k.y0, k.t0], writes=[k.a])
    flow.exchange(ring, [ring.isend(k.a, to=right), ring.irecv(k.y1, source=left)])
    flow.compute(lambda: np.multiply(k.a, C, out=k.t1), reads=[k.a], writes=[k.t1])                  # during the second round
    flow.compute(lambda: np.add(k.y1, k.t1, out=k.out), reads=[k.y1, k.t1], writes=[k.out])


def main(rank: parley.Rank) -> None:
    left, right = (rank.id - 1) % rank.world_size, (rank.id + 1) % rank.world_size
    ring = parley.P2P(rank, "ring", configs=["direct", "chunked(chunk_bytes=256KiB)", "chunked(chunk_bytes=1MiB in_flight=4)"])
    k = Buffers(x0_of(rank.id))
    with parley.Dataflow(rank) as flow:
        for _ in range(options.rounds):
            exchange_twice(flow, ring, left, right, k)
            flow.join()

    def a_of(r: int) -> np.ndarray:
        a: np.ndarray = x0_of((r - 1) % rank.world_size) + (2 * x0_of(r) + 1)
        return a

    if not (k.out == a_of(left) + a_of(rank.id) * C).all():
        raise ValueError("the result is not the one that a single process computes")
    print(f"rank {rank.id}: out sums to {k.out.sum(dtype=np.float64):.0f}, bytes copied by the library: {ring.copied_bytes}")


if __name__ == "__main__":
    raise SystemExit(parley.run(main))
