"""Attention over a sequence that ranks share, and matrix products."""

from __future__ import annotations

import numpy as np
import pytest
from conftest import Job

import parley
from parley import tunable

HEADS, ROWS, DIMENSIONS = 2, 16, 8


def sequence(ranks: int, dtype: str) -> list[np.ndarray]:
    random = np.random.default_rng(5)
    return [random.standard_normal((HEADS, ranks * ROWS, DIMENSIONS)).astype(dtype) for _ in range(3)]


def dense(q: np.ndarray, k: np.ndarray, v: np.ndarray, causal: bool, scale: float) -> np.ndarray:
    scores = np.einsum("hid,hjd->hij", q, k) * scale
    if causal:
        scores[:, np.triu_indices(q.shape[1], 1)[0], np.triu_indices(q.shape[1], 1)[1]] = -np.inf
    weights = np.exp(scores - scores.max(axis=2, keepdims=True))
    result: np.ndarray = weights / weights.sum(axis=2, keepdims=True) @ v
    return result


@pytest.mark.parametrize(("dtype", "causal", "scale", "error"), [("float64", False, 0.0, 1e-13), ("float64", True, 0.3, 1e-13),
                                                                 ("float32", True, 0.0, 2e-6)])
def test_attention_is_that_of_the_whole_sequence(dtype: str, causal: bool, scale: float, error: float) -> None:
    async def main(rank: parley.Rank) -> None:
        ring = parley.RingAttention(rank, "attention")
        assert ring.size == rank.world_size and not ring.idle
        q, k, v = sequence(rank.world_size, dtype)
        mine = slice(rank.id * ROWS, (rank.id + 1) * ROWS)
        q_mine, k_mine, v_mine = (np.ascontiguousarray(x[:, mine]) for x in (q, k, v))
        out = np.zeros_like(q_mine)
        for _ in range(2):
            await ring.iforward(q_mine, k_mine, v_mine, out, causal=causal, scale=scale)
        right = dense(q, k, v, causal, scale or DIMENSIONS**-0.5)[:, mine]
        assert np.abs(out - right).max() <= error, np.abs(out - right).max()

    for ranks, faults in ((1, "none"), (4, "none"), (4, "weather")):
        assert parley.simulate(main, ranks=ranks, seed=ranks, faults=faults) == 0


def test_attention_refuses_what_does_not_fit(job: Job) -> None:
    made = job("""
import numpy as np
import parley

def main(rank):
    ring = parley.RingAttention(rank, "attention", timeout=5)
    q = np.zeros((2, 4, 8), np.float32)
    for words, says in [((q, q, q, q[:, :2]), "contiguous"), ((q, q, q.astype(float), q), "differ"),
                        ((q[0], q[0], q[0], q[0].copy()), "(heads"), ((q.astype(int),) * 4, "float32"),
                        ((bytearray(4),) * 4, "pass an array")]:
        try:
            ring.forward(*words)
            raise AssertionError(says)
        except parley.BadArgument as why:
            assert says in str(why), (says, why)
    ring.forward(q, q, q, q.copy())
    try:
        ring.forward(q, q, q, q.copy(), causal=bool(rank.id))
    except parley.Failure as why:
        print("told", rank.id, why.code)

raise SystemExit(parley.run(main))
""")
    assert "told 0 declaration_mismatch" in made.stdout and "told 1 declaration_mismatch" in made.stdout, made.stdout + made.stderr


def test_products_with_transposes_batches_and_bias() -> None:
    random = np.random.default_rng(1)

    def matrix(*shape: int) -> np.ndarray:
        return random.standard_normal(shape)

    with parley.join() as rank:
        multiply = parley.Gemm(rank)
        assert "blocked" in multiply.implementations
        for dtype, error in ((np.float32, 1e-4), (np.float64, 1e-12)):
            for batch in ((), (3,)):
                for trans_a, trans_b in ((False, False), (True, False), (False, True), (True, True)):
                    a, b, c = (matrix(*batch, *shape).astype(dtype) for shape in ((5, 7), (7, 4), (5, 4)))
                    bias = None if batch else matrix(4).astype(dtype)
                    right: np.ndarray = 2 * np.matmul(a, b) - 3 * c
                    if bias is not None:
                        right += bias
                    x = np.ascontiguousarray(np.swapaxes(a, -1, -2)) if trans_a else a
                    y = np.ascontiguousarray(np.swapaxes(b, -1, -2)) if trans_b else b
                    multiply(x, y, c, trans_a=trans_a, trans_b=trans_b, alpha=2, beta=-3, bias=bias)
                    assert np.abs(c - right).max() < error, (dtype, batch, trans_a, trans_b)


def test_a_product_is_tuned_and_has_the_names_of_tunable_op() -> None:
    with parley.join() as rank:
        tunable.enable()
        tunable.set_max_tuning_duration(5)
        tunable.set_max_tuning_iterations(3)
        multiply = parley.Gemm(rank)
        a, b, c = np.ones((8, 64)), np.ones((16, 64)), np.zeros((8, 16))
        multiply(a, b, c, trans_b=True)
        assert (c == 64).all()
        assert multiply.runs(a, b, c, trans_b=True) in multiply.implementations
        names = {(r[0], r[1]) for r in tunable.get_results()}
        assert ("GemmTunableOp_double_TN", "tn_16_8_64") in names, names
        assert parley.Gemm(rank).runs(a, b, c, trans_b=True) == multiply.runs(a, b, c, trans_b=True)


def test_products_refuse_what_does_not_fit() -> None:
    a, b, c = np.zeros((2, 3)), np.zeros((3, 4)), np.zeros((2, 4))
    with parley.join() as rank:
        multiply = parley.Gemm(rank)
        for words, named, says in [
            ((a, b, np.zeros((2, 5))), {}, "the sizes do not fit"),
            ((a, b, c), {"trans_a": True}, "the sizes do not fit"),
            ((a, b, np.zeros((4, 2)).T), {}, "do not follow each other"),
            ((a, b.astype(np.float32), c), {}, "different types"),
            ((a.astype(int), b.astype(int), c.astype(int)), {}, "float32 or float64"),
            ((a[0], b, c), {}, "neither a matrix"),
            ((np.zeros((2, 2, 3)), b, c), {}, "different numbers of matrices"),
            ((a, b, c), {"bias": np.zeros(3)}, "bias"),
            ((a, b, c), {"bias": np.zeros(4, np.float32)}, "different types"),
            ((bytearray(8), b, c), {}, "has no shape"),
        ]:
            with pytest.raises(parley.BadArgument, match=says):
                multiply(*words, **named)  # type: ignore[arg-type]
        with pytest.raises(parley.BadArgument):
            multiply(c, np.zeros((4, 4)), c)  # overlaps
