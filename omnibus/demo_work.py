"""What the demo runs in the mesh: a network for 8×8 digits, as plain functions on a dict of tensors, and its actor.

Nothing here knows of a bus. Workers call :func:`gradient` and :func:`count_correct`; one actor is the
:class:`ParameterServer`. The same seed gives the same weights to the last bit, whichever worker computes what and
however often: each call's randomness comes from its arguments, and gradients are summed in the order of their shards.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from omnibus.actors.actor import Actor

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["ParameterServer", "Weights", "count_correct", "gradient", "new_weights"]

Weights: TypeAlias = "dict[str, Tensor]"
"""The network's parameters by name; gradients have the same form."""

CHANNELS = (16, 32)
MOMENTUM, VELOCITY, TINY = 0.9, 0.99, 1e-8


def new_weights(seed: int) -> Weights:
    """Return the weights to begin with: two convolutions and one linear layer, some 10,000 numbers."""
    import torch

    chance = torch.Generator().manual_seed(seed)
    first, second = CHANNELS

    def drawn(*shape: int, fan_in: int) -> Tensor:
        return torch.randn(*shape, generator=chance).mul_((2 / fan_in) ** 0.5)

    return {
        "first": drawn(first, 1, 3, 3, fan_in=9),
        "first_bias": torch.zeros(first),
        "second": drawn(second, first, 3, 3, fan_in=9 * first),
        "second_bias": torch.zeros(second),
        "last": drawn(10, second * 16, fan_in=second * 16),
        "last_bias": torch.zeros(10),
    }


def _scores(weights: Weights, images: Tensor) -> Tensor:
    """Return ten scores for each of ``images``, which are n × 1 × 8 × 8."""
    from torch.nn import functional

    x = functional.relu(functional.conv2d(images, weights["first"], weights["first_bias"], padding=1))
    x = functional.relu(functional.conv2d(x, weights["second"], weights["second_bias"], padding=1))
    return functional.linear(functional.max_pool2d(x, 2).flatten(1), weights["last"], weights["last_bias"])


def _shifted(images: Tensor, copies: int, seed: int) -> Tensor:
    """Return ``copies`` of the images, each moved by up to one pixel in both directions."""
    import torch
    from torch.nn import functional

    chance = torch.Generator().manual_seed(seed)
    wide = functional.pad(images, (1, 1, 1, 1))
    moves = torch.randint(0, 3, (copies, 2), generator=chance).tolist()
    return torch.cat([wide[:, :, down : down + 8, right : right + 8] for down, right in moves])


def gradient(weights: Weights, images: Tensor, labels: Tensor, copies: int, seed: int) -> Weights:
    """Return the gradient of the mean loss over a shard of the training data."""
    import torch
    from torch.nn import functional

    leaves = {name: value.detach().requires_grad_() for name, value in weights.items()}
    scores = _scores(leaves, _shifted(images, copies, seed))
    loss = functional.cross_entropy(scores, labels.repeat(copies))
    return dict(zip(leaves, torch.autograd.grad(loss, list(leaves.values())), strict=True))


def count_correct(weights: Weights, images: Tensor, labels: Tensor) -> int:
    """Return how many of the images are told rightly."""
    import torch

    with torch.inference_mode():
        return int((_scores(weights, images).argmax(1) == labels).sum())


class ParameterServer(Actor):
    """Holds the weights; takes gradients by ``push``, and moves the weights by ``apply`` (Adam).

    A task may run twice, if its worker dies after the work and before the answer: a gradient that is pushed again
    replaces its equal.
    """

    def __init__(self, seed: int, shards: int, rate: float) -> None:
        import torch

        self._values = new_weights(seed)
        self._shards = shards
        self._rate = rate
        self._steps = 0
        self._pushed: dict[int, Weights] = {}
        self._mean = {name: torch.zeros_like(value) for name, value in self._values.items()}
        self._square = {name: torch.zeros_like(value) for name, value in self._values.items()}

    def weights(self) -> Weights:
        """Return the weights as they are."""
        return self._values

    def push(self, shard: int, found: Weights) -> None:
        """Take the gradient of one shard for the next step."""
        self._pushed[shard] = found

    def apply(self) -> Weights:
        """Make a step with the mean of all shards' gradients, and return the new weights.

        Raises ``RuntimeError`` where one is missing.
        """
        import torch

        missing = [shard for shard in range(self._shards) if shard not in self._pushed]
        if missing:
            raise RuntimeError(f"step {self._steps} lacks the gradients of shards {missing}")
        self._steps += 1
        for name, value in self._values.items():
            step = torch.stack([self._pushed[shard][name] for shard in range(self._shards)]).mean(0)
            mean = self._mean[name].lerp_(step, 1 - MOMENTUM)
            square = self._square[name].lerp_(step * step, 1 - VELOCITY)
            spread = (square / (1 - VELOCITY**self._steps)).sqrt() + TINY
            self._values[name] = value - self._rate * mean / (1 - MOMENTUM**self._steps) / spread
        self._pushed.clear()
        return self._values

    def steps(self) -> int:
        """Return how many steps were made."""
        return self._steps
