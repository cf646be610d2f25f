"""The demo's own side of the bus: cut the work into tasks, kill a worker in the middle, and keep the books.

Each round trains on every shard in the low lane, then evaluates in the high lane the weights that the round began
with: those tasks come last and jump the queue. Weights, images and gradients travel as tensors.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from omnibus.bus import Bus
from omnibus.demo_work import ParameterServer, Weights, count_correct, gradient

if TYPE_CHECKING:
    from torch import Tensor

    from omnibus.futures import Future
    from omnibus.refs import ActorRef

__all__ = ["EVALUATION", "SERVER", "TRAINING", "Data", "Lane", "Listener", "Plan", "Report", "Training", "load_data"]

TRAINING, EVALUATION, SERVER = 0, 10, 20
"""The lanes: shards of the training data, evaluations, messages to the parameter server."""
TITLES = {TRAINING: "training shards", EVALUATION: "evaluations", SERVER: "messages to the actor"}
HELD_OUT = 360
PIECES = 4
REPLACED_WITHIN = 10.0
MOST_KILLS = 5


@dataclass(frozen=True, slots=True)
class Plan:
    """How much to do. ``copies``: how often each image is seen in a round, moved a little each time."""

    seed: int = 0
    rounds: int = 45
    shards: int = 24
    copies: int = 2
    rate: float = 0.01

    @property
    def tasks(self) -> int:
        """How many tasks it makes: gradients of shards, and evaluations of the weights before and after each round."""
        return self.rounds * self.shards + (self.rounds + 1) * PIECES


@dataclass(frozen=True, slots=True)
class Data:
    """Images and labels, cut into shards for training and into pieces for evaluation."""

    shards: list[tuple[Tensor, Tensor]]
    pieces: list[tuple[Tensor, Tensor]]


@dataclass(frozen=True, slots=True)
class Lane:
    """What the broker says of one lane; waits in seconds."""

    priority: int
    title: str
    tasks: int
    mean_wait: float
    longest_wait: float


@dataclass(slots=True)
class Report:
    """What came of it. ``problems`` is empty where nothing was lost and all went as it should."""

    seed: int
    rounds: int
    seconds: float = 0.0
    tasks: int = 0
    lost: int = 0
    redelivered: int = 0
    tasks_per_second: float = 0.0
    tensors: int = 0
    tensor_bytes: int = 0
    accuracy_before: float = 0.0
    accuracy: float = 0.0
    kills: int = 0
    killed: str = ""
    killed_pid: int = 0
    replaced_by: int = 0
    replaced_seconds: float = 0.0
    lanes: list[Lane] = field(default_factory=list)
    books: dict[str, int] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)


class Listener:
    """Is told how it goes; this one ignores it."""

    def begun(self, status: dict[str, Any]) -> None:
        """Learn that training begins, in the mesh that ``status`` describes."""

    def advanced(self, done: int, round_: int, accuracy: float) -> None:
        """Learn how many tasks are done."""

    def killed(self, name: str, pid: int, waiting: int) -> None:
        """Learn that a worker was killed, while so many tasks waited in the queue."""

    def replaced(self, name: str, pid: int, seconds: float) -> None:
        """Learn that a worker took the killed one's place."""


def load_data(plan: Plan) -> Data:
    """Return scikit-learn's handwritten digits, shuffled by the plan's seed and cut."""
    import torch
    from sklearn.datasets import load_digits

    digits = load_digits()
    images = torch.tensor(digits.images, dtype=torch.float32).div(16).unsqueeze(1)
    labels = torch.tensor(digits.target)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(plan.seed))

    def cut(part: Tensor, count: int) -> list[tuple[Tensor, Tensor]]:
        return [(images[part[start::count]], labels[part[start::count]]) for start in range(count)]

    return Data(cut(order[HELD_OUT:], plan.shards), cut(order[:HELD_OUT], PIECES))


class Training:
    """One run of the demo on a bus to a mesh with nothing else to do. :meth:`run` does it all."""

    def __init__(self, bus: Bus, plan: Plan, data: Data, listener: Listener | None = None) -> None:
        self._bus = bus
        self._plan = plan
        self._data = data
        self._listener = listener or Listener()
        self._low = bus.options(priority=TRAINING, name="shard")
        self._high = bus.options(priority=EVALUATION, name="evaluation")
        self._received: set[tuple[str, int, int]] = set()
        self._evaluating: list[tuple[int, list[Future[int]]]] = []
        self._known: set[int] = set()
        self._killed_at = 0.0
        self.report = Report(plan.seed, plan.rounds)

    def run(self) -> Report:
        """Train, kill, evaluate, check the books; return the report.

        What a task raised, and why the bus ended, pass through.
        """
        plan = self._plan
        server = self._bus.spawn(ParameterServer, plan.seed, plan.shards, plan.rate).options(priority=SERVER)
        self._listener.begun(self._bus.status())
        began = time.monotonic()
        weights = server.ask("weights").result()
        for round_ in range(plan.rounds):
            shards = self._train(round_, weights)
            self._evaluate(round_, weights)
            self._gather(round_, shards, server)
            weights = server.ask("apply").result()
        self._evaluate(plan.rounds, weights)
        self._gather_evaluations(wait=True)
        self._listener.advanced(len(self._received), plan.rounds - 1, self.report.accuracy)
        self.report.seconds = time.monotonic() - began
        self._wait_for_replacement()
        self._audit(self._bus.status(), server.ask("steps").result())
        server.stop()
        return self.report

    # ------------------------------------------------------------------ tasks

    def _train(self, round_: int, weights: Weights) -> list[Future[Weights]]:
        plan = self._plan
        chance = (plan.seed * plan.rounds + round_) * plan.shards
        futures = []
        for shard, (images, labels) in enumerate(self._data.shards):
            futures.append(self._low.submit(gradient, weights, images, labels, plan.copies, chance + shard))
            self._weigh(images, labels, *weights.values())
        return futures

    def _evaluate(self, round_: int, weights: Weights) -> None:
        futures = []
        for images, labels in self._data.pieces:
            futures.append(self._high.submit(count_correct, weights, images, labels))
            self._weigh(images, labels, *weights.values())
        self._evaluating.append((round_, futures))

    def _gather(self, round_: int, shards: list[Future[Weights]], server: ActorRef) -> None:
        """Take the gradients of a round, and pass them on; a third of the way, kill a worker."""
        for shard, future in enumerate(shards):
            found = future.result()
            self._count("shard", round_, shard)
            self._weigh(*found.values())
            server.tell("push", shard, found)
            if round_ >= self._plan.rounds // 3 and shard == 3:
                self._kill()
            self._look_for_replacement()
            self._gather_evaluations()
            self._listener.advanced(len(self._received), round_, self.report.accuracy)

    def _gather_evaluations(self, *, wait: bool = False) -> None:
        """Take the evaluations that are complete, in the order of their rounds."""
        while self._evaluating and (wait or all(future.done() for future in self._evaluating[0][1])):
            round_, futures = self._evaluating.pop(0)
            right = [future.result() for future in futures]
            self.report.accuracy = sum(right) / sum(len(labels) for _, labels in self._data.pieces)
            if round_ == 0:
                self.report.accuracy_before = self.report.accuracy
            for part in range(len(futures)):
                self._count("evaluation", round_, part)

    def _count(self, what: str, round_: int, part: int) -> None:
        """Note a result that came."""
        key = (what, round_, part)
        if key in self._received:
            self.report.problems.append(f"{what} {part} of round {round_} came twice")
        self._received.add(key)

    def _weigh(self, *tensors: Tensor) -> None:
        self.report.tensors += len(tensors)
        self.report.tensor_bytes += sum(tensor.nbytes for tensor in tensors)

    # ------------------------------------------------------------------ the killing

    def _kill(self) -> None:
        """Kill a worker that has work, by SIGKILL, while more waits.

        Where the last one was just between two tasks, another follows: what is to be seen is a task that is lost.
        """
        status = self._bus.status()
        if self._known or status["tasks"]["redelivered"] or self.report.kills == MOST_KILLS:
            return
        busy = [worker for worker in status["workers"] if worker["running"]]
        if not busy:
            self.report.problems.append(f"no worker was busy in mid-training: {status['workers']}")
            return
        victim = max(busy, key=lambda worker: _computes(worker["pid"]))
        name, pid = victim["name"], victim["pid"]
        os.kill(pid, signal.SIGKILL)
        self._killed_at = time.monotonic()
        self._known = {worker["pid"] for worker in status["workers"]}
        self.report.killed, self.report.killed_pid = name, pid
        self.report.kills += 1
        self._listener.killed(name, pid, status["tasks"]["queued"])

    def _look_for_replacement(self) -> bool:
        """Return whether there is nothing to look for, or the killed worker's successor is at work."""
        if not self._known:
            return True
        fresh = [worker for worker in self._bus.status()["workers"] if worker["pid"] not in self._known]
        if not fresh:
            return False
        self._known = set()
        name, pid, seconds = fresh[0]["name"], fresh[0]["pid"], time.monotonic() - self._killed_at
        self.report.replaced_by, self.report.replaced_seconds = pid, seconds
        self._listener.replaced(name, pid, seconds)
        return True

    def _wait_for_replacement(self) -> None:
        deadline = time.monotonic() + REPLACED_WITHIN
        while not self._look_for_replacement():
            if time.monotonic() > deadline:
                self.report.problems.append(f"{self.report.killed} was not replaced within {REPLACED_WITHIN:g} s")
                return
            threading.Event().wait(0.01)

    # ------------------------------------------------------------------ the books

    def _audit(self, status: dict[str, Any], steps: int) -> None:
        """Compare what was submitted with what came, here and in the broker's ledger."""
        plan, report = self._plan, self.report
        report.books = dict(status["tasks"])
        report.tasks = len(self._received)
        report.lost = plan.tasks - report.tasks
        report.redelivered = report.books["redelivered"]
        report.tasks_per_second = report.tasks / report.seconds
        report.lanes = list(_lanes(status["waited"]))
        report.problems.extend(_faults(report.books, plan.tasks))
        if report.lost:
            report.problems.append(f"{report.lost} of {plan.tasks} results did not come")
        if steps != plan.rounds:
            report.problems.append(f"the parameter server made {steps} steps in {plan.rounds} rounds")


def _computes(pid: int) -> bool:
    """Return whether the process is on a CPU, or waits for one."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] == "R"
    except OSError:
        return False


def _faults(books: dict[str, int], tasks: int) -> Iterator[str]:
    """Yield what is wrong with the broker's ledger after ``tasks`` tasks that should all be done."""
    for name in ("submitted", "done"):
        if books[name] != tasks:
            yield f"the broker counts {books[name]} tasks as {name}; expected {tasks}"
    for name in ("queued", "running", "failed", "cancelled", "expired", "dead", "balance"):
        if books[name]:
            yield f"the broker counts {books[name]} as {name}; expected none"


def _lanes(waited: dict[int, dict[str, float]]) -> Iterator[Lane]:
    for priority, told in sorted(waited.items(), reverse=True):
        count = int(told["dispatched"])
        title = TITLES.get(priority, f"lane {priority}")
        yield Lane(priority, title, count, told["waited"] / max(1, count), told["longest"])

