"""Example 1 of the asymmetric design: a send and a receive that are tuned as a pair.

    python -m parley run -n 2 examples/python/paired_transfer.py
    python examples/python/paired_transfer.py --sim 2

It shows a pair of operations, `send` and `receive`, each with its own functions. The two ranks find out together which pair is the
fastest, on the program's own messages.

What had to change from the way the design writes it, and why:

- The design has one list of configs for the sender and one for the receiver, and runs the entries at one place of both lists together. Here
  the halves meet by their `config_id`: lists of different lengths or orders would run halves that do not fit.
- A config that one role lacks had the time 0.0 there, and won. Here it is left out, and `pair.left_out` names it.
- The sender cut a tensor by its rows and the receiver by its elements: a tensor of (1024, 1025) floats was one chunk here and two there.
  Here both functions cut by `chunk_bytes` of the agreed config and by the number of bytes, which both ranks know.
- Trials need no barrier of all ranks: they are messages of the program, and only the two ranks of the pair exchange anything about them. A
  third rank has the role `idle`.
- The functions are coroutines, because the sends of a config and all else on its rank share one thread.
"""

from __future__ import annotations

import sys

import numpy as np

import parley
from parley import PairedOpConfig
from parley.configs import PartReceiver, PartSender


async def send_direct(out: PartSender, data: memoryview) -> None:
    await out.send(0, data)


async def receive_direct(parts: PartReceiver, data: memoryview) -> None:
    await parts.receive(0, data)


def step_of(parts: PartSender | PartReceiver) -> int:
    parts.keep_in_flight(int(parts.parameters["in_flight"]))
    return int(parts.parameters["chunk_bytes"])


async def send_chunked(out: PartSender, data: memoryview) -> None:
    step = step_of(out)
    for at in range(0, len(data), step):
        await out.send(at, data[at:at + step])


async def receive_chunked(parts: PartReceiver, data: memoryview) -> None:
    step = step_of(parts)
    for at in range(0, len(data), step):
        await parts.receive(at, data[at:at + step])


PAIRS = [
    PairedOpConfig("direct", send_direct, receive_direct),
    PairedOpConfig("chunked(chunk_bytes=1048576 in_flight=2)", send_chunked, receive_chunked),
    PairedOpConfig("chunked(chunk_bytes=262144 in_flight=4)", send_chunked),
    PairedOpConfig("chunked(chunk_bytes=262144 in_flight=4)", receive=receive_chunked),
    PairedOpConfig("compressed", send_direct),  # nobody has written the receiver's half
]


async def main(rank: parley.Rank) -> None:
    pair = parley.register_paired_op_autotuning(rank, "send", "receive", PAIRS, lambda r: {0: "send", 1: "receive"}.get(r, "idle"))
    activations = np.zeros((1024, 1025), np.float32)
    for step in range(200):
        if rank.id == 0:
            activations[:] = step
            await pair.op.isend(activations, to=1)
        elif rank.id == 1:
            await pair.op.ireceive(activations, source=0)
            assert (activations == step).all()
    if rank.id == 0:
        print("left out:", *pair.left_out)
        decision = pair.op.decision(activations.nbytes)
        print(decision.config if decision.decided else "not decided", "-", decision.why)


if __name__ == "__main__":
    raise SystemExit(parley.simulate(main, ranks=int(sys.argv[2])) if sys.argv[1:2] == ["--sim"] else parley.run(main))
