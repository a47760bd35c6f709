"""A small network that a pipeline of ranks trains: the schedule is data, and the stages are functions on arrays of numpy.

    python -m parley run -n 4 examples/python/training.py [--schedule 1f1b|gpipe|interleaved|FILE] [--microbatches 8] [--steps 30]

Each stage is one layer, y = tanh(x w). The program compares the gradients of the first step with those of a single process, bit for bit.
FILE has a line of actions for each rank, such as `0F0,0F1,0B0,0B1`; sends and receives are added.

What had to change from the way that a pipeline engine writes it, and why:
- A schedule is a value, made by a name or from a text, and not a class with a loop of its own. So all ranks can compare their schedules
  before the first step, and an own one needs no code.
- Stages write into arrays that they are given (`out`, `gradient_in`). These are the pipeline's memory, which messages use directly. They
  are valid only until the function ends: who needs an activation later gets it again in `backward`.
- The last stage gets no gradient. It begins with the loss, here half the sum of the squared differences from the target.
- The step of the optimizer is the program's own code, after `run`: a pass computes gradients and nothing else.
"""

import argparse
import pathlib

import numpy as np

import parley

words = argparse.ArgumentParser(description="A small network that a pipeline of ranks trains.")
words.add_argument("--schedule", default="1f1b", help="1f1b, gpipe, interleaved, or a file with a line of actions for each rank")
words.add_argument("--microbatches", type=int, default=8)
words.add_argument("--steps", type=int, default=30)
options = words.parse_args()

BATCH, WIDTH, RATE = 16, 32, 0.02
rng = np.random.default_rng(1)
data = rng.standard_normal((64, BATCH, WIDTH))          # by microbatch; each rank makes the same
target = np.tanh(data @ rng.standard_normal((WIDTH, WIDTH)) / 8)


class Network:
    def __init__(self, stages: int) -> None:
        self.stages = stages
        self.weights = [np.random.default_rng(s).standard_normal((WIDTH, WIDTH)) / 6 for s in range(stages)]
        self.clear()

    def clear(self) -> None:
        self.gradients = [np.zeros((WIDTH, WIDTH)) for _ in range(self.stages)]
        self.loss = 0.0

    def forward(self, stage: int, microbatch: int, x: np.ndarray | None, out: np.ndarray) -> None:
        np.tanh((data[microbatch] if x is None else x) @ self.weights[stage], out=out)

    def backward(self, stage: int, microbatch: int, x: np.ndarray | None, out: np.ndarray, gradient_out: np.ndarray | None,
                 gradient_in: np.ndarray | None) -> None:
        if gradient_out is None:
            gradient_out = out - target[microbatch]
            self.loss += 0.5 * float(np.square(gradient_out).sum())
        inside = gradient_out * (1 - out * out)
        self.gradients[stage] += (data[microbatch] if x is None else x).T @ inside
        if gradient_in is not None:
            np.matmul(inside, self.weights[stage].T, out=gradient_in)


def gradients_of_one_process(stages: int, microbatches: int) -> list[np.ndarray]:
    """The same pass, without parley."""
    network = Network(stages)
    for m in range(microbatches):
        outs: list[np.ndarray] = [np.zeros((BATCH, WIDTH)) for _ in range(stages)]
        for s in range(stages):
            network.forward(s, m, outs[s - 1] if s else None, outs[s])
        gradient: np.ndarray | None = None
        for s in reversed(range(stages)):
            before = np.zeros((BATCH, WIDTH)) if s else None
            network.backward(s, m, outs[s - 1] if s else None, outs[s], gradient, before)
            gradient = before
    return network.gradients


def schedule_for(ranks: int) -> parley.Schedule:
    if options.schedule == "1f1b":
        return parley.Schedule.one_forward_one_backward(ranks, options.microbatches)
    if options.schedule == "gpipe":
        return parley.Schedule.gpipe(ranks, options.microbatches)
    if options.schedule == "interleaved":
        return parley.Schedule.interleaved(ranks, options.microbatches, chunks=2)
    return parley.Schedule.parse(pathlib.Path(options.schedule).read_text())


def main(rank: parley.Rank) -> None:
    schedule = schedule_for(rank.world_size)
    network = Network(schedule.stages)
    pipe = parley.TrainingPipeline(rank, "layers", schedule, shape=(BATCH, WIDTH), dtype="float64")
    mine = [s for s in range(schedule.stages) if schedule.rank_of(s) == rank.id]
    losses = []
    for step in range(options.steps):
        network.clear()
        report = pipe.run(network.forward, network.backward)
        if step == 0:
            right = gradients_of_one_process(schedule.stages, schedule.microbatches)
            if not all((network.gradients[s] == right[s]).all() for s in mine):
                raise ValueError("the gradients are not those of a single process")
        for s in mine:
            network.weights[s] -= RATE / (BATCH * schedule.microbatches) * network.gradients[s]
        losses.append(network.loss)
    if schedule.stages - 1 in mine:
        print(f"the loss has fallen from {losses[0]:.2f} to {losses[-1]:.2f}")
        if losses[-1] >= losses[0]:
            raise ValueError("nothing was learned")
    print(f"rank {rank.id}: {report.sent} messages a pass, {report.most_alive} microbatches alive, "
          f"idle {100 * report.idle_share:.0f} % (ideal {100 * report.ideal_idle_share:.0f} %)")


if __name__ == "__main__":
    raise SystemExit(parley.run(main))
