"""Two tilings of a matrix product in Triton, for ag_gemm.py. With TRITON_INTERPRET=1 they run on the CPU, slowly."""

import os
from collections.abc import Callable

import numpy as np
import torch
import triton
import triton.language as tl


@triton.jit
def product(a, b, c, m, n, k, TILE: tl.constexpr):
    """A tile of c = a b, all in row-major order."""
    rows = tl.program_id(0) * TILE + tl.arange(0, TILE)
    columns = tl.program_id(1) * TILE + tl.arange(0, TILE)
    total = tl.zeros((TILE, TILE), dtype=tl.float32)
    for first in range(0, k, TILE):
        inner = first + tl.arange(0, TILE)
        of_a = tl.load(a + rows[:, None] * k + inner[None, :], mask=(rows[:, None] < m) & (inner[None, :] < k), other=0.0)
        of_b = tl.load(b + inner[:, None] * n + columns[None, :], mask=(inner[:, None] < k) & (columns[None, :] < n), other=0.0)
        total += tl.dot(of_a, of_b, input_precision="ieee")
    tl.store(c + rows[:, None] * n + columns[None, :], total, mask=(rows[:, None] < m) & (columns[None, :] < n))


def implementations() -> dict[str, Callable[[np.ndarray, np.ndarray, np.ndarray], object]]:
    """By name; empty without a GPU."""
    interpreted = os.environ.get("TRITON_INTERPRET") == "1"
    if not interpreted and not torch.cuda.is_available():
        return {}
    device = "cpu" if interpreted else "cuda"

    def with_tile(tile: int) -> Callable[[np.ndarray, np.ndarray, np.ndarray], object]:
        def multiply(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> None:
            on_device = [torch.from_numpy(x).to(device) for x in (a, b, c)]
            (m, k), n = a.shape, b.shape[1]
            product[(triton.cdiv(m, tile), triton.cdiv(n, tile))](*on_device, m, n, k, TILE=tile)
            torch.from_numpy(c).copy_(on_device[2])
        return multiply

    return {f"triton(tile={tile})": with_tile(tile) for tile in (32, 64)}
