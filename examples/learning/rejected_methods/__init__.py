"""Mask methods that were tried and rejected; ../README.md has their results.

Train with ``--user-dir examples/learning/rejected_methods``, ``--mask-method`` and, for
the number, METHOD in the environment (``rejected_methods.sh`` gives both):

- coats:2 weights are dropped, kept, or kept twice: the half of those kept with the
  largest scores counts double (Multicoated supermasks), all scaled to the same power;
- frozen:0.5 half of the positions, drawn once, are kept or dropped for good, and the
  others learn (partly frozen masks);
- global: one threshold for all tensors, on scores relative to their first range;
- mean:0.99 validation uses the mask of the moving average of the scores, of which each
  update keeps 0.99;
- holding:0.1 a weight that is kept stays until its score is a tenth below the threshold
  (hysteresis).

They only serve to measure the loss: no ticket can hold such a mask.
"""

import os
from typing import ClassVar, List, Optional

import torch
from torch import Tensor

import onelayer_lottery.plugin
from onelayer_lottery.core.methods import METHODS, MaskMethod
from onelayer_lottery.core.modules import MaskedWeight

METHOD, _, VALUE = os.environ.get("METHOD", "").partition(":")


def threshold_of(magnitude: Tensor, keep: float) -> Tensor:
    dropped = magnitude.numel() - round(keep * magnitude.numel())
    return magnitude.flatten().kthvalue(dropped + 1).values


def factors(magnitude: Tensor, threshold: Tensor, softness: float) -> Tensor:
    hard = (magnitude >= threshold).float()
    return hard.lerp((magnitude / (2 * threshold)).clamp(max=1), softness)


def top(magnitude: Tensor, keep: float, softness: float) -> Tensor:
    return factors(magnitude, threshold_of(magnitude, keep), softness)


class Coats(MaskMethod):
    def mask(self, weight: MaskedWeight) -> Tensor:
        keeps = [weight.keep / 2**coat for coat in range(int(VALUE))]
        coats = [top(weight.scores.abs(), keep, weight.softness) for keep in keeps]
        power = sum((2 * coat + 1) * keep for coat, keep in enumerate(keeps))
        return sum(coats) * (weight.keep / power) ** 0.5


class PartlyFrozen(MaskMethod):
    count: ClassVar[int] = 0  # of masks: each draws positions of its own

    def __init__(self) -> None:
        self.seed = PartlyFrozen.count
        PartlyFrozen.count += 1

    def mask(self, weight: MaskedWeight) -> Tensor:
        magnitude = weight.scores.abs()
        generator = torch.Generator().manual_seed(self.seed)
        fixed = torch.rand(magnitude.shape, generator=generator) < float(VALUE)
        kept = torch.rand(magnitude.shape, generator=generator) < weight.keep
        threshold = threshold_of(magnitude[~fixed], weight.keep)
        learned = factors(magnitude, threshold, weight.softness)
        return torch.where(fixed, kept.float(), learned)


class Global(MaskMethod):
    weights: ClassVar[List[MaskedWeight]] = []  # in the order of their first use
    threshold: ClassVar[Optional[Tensor]] = None

    def mask(self, weight: MaskedWeight) -> Tensor:
        new = weight not in self.weights
        if new:
            self.weights.append(weight)
        if new or weight is self.weights[0]:  # it is the first in every update
            relative = [
                (w.scores.abs() * w.scores.shape[1] ** 0.5).flatten()
                for w in self.weights
            ]
            Global.threshold = threshold_of(torch.cat(relative), weight.keep)
        threshold = self.threshold / weight.scores.shape[1] ** 0.5
        return factors(weight.scores.abs(), threshold, weight.softness)


class Mean(MaskMethod):
    average: Optional[Tensor] = None

    def mask(self, weight: MaskedWeight) -> Tensor:
        magnitude = weight.scores.abs()
        if weight.training:
            if self.average is None:
                self.average = weight.scores.clone()
            self.average.lerp_(weight.scores, 1 - float(VALUE))
        elif self.average is not None:
            magnitude = self.average.abs()
        return top(magnitude, weight.keep, weight.softness)


class Holding(MaskMethod):
    kept: Optional[Tensor] = None

    def mask(self, weight: MaskedWeight) -> Tensor:
        magnitude = weight.scores.abs()
        if self.kept is not None:
            magnitude = magnitude * (1 + float(VALUE) * self.kept)
        threshold = threshold_of(magnitude, weight.keep)
        self.kept = (magnitude >= threshold).float()
        return factors(magnitude, threshold, weight.softness)


REJECTED = {
    "coats": Coats,
    "frozen": PartlyFrozen,
    "global": Global,
    "mean": Mean,
    "holding": Holding,
}

if METHOD not in REJECTED:
    raise SystemExit(f"METHOD is {METHOD!r}; give one of {', '.join(REJECTED)}")
METHODS.update(REJECTED)
print(f"onelayer_lottery {onelayer_lottery.__version__} with masks by {METHOD}:{VALUE}")
