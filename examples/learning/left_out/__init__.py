"""Masks that were tried and left out of the package; README.md has what came of them.

Train with ``--user-dir examples/learning/left_out`` and METHOD in the environment:

- coats:2 weights are dropped, kept, or kept twice: the half of those kept with the
  largest scores counts double (Multicoated supermasks), all scaled to the same power;
- frozen:0.5 of the positions, drawn once, half are kept and half dropped for good, and
  the others learn (partly frozen masks);
- global: one threshold for all tensors, on scores relative to their first range;
- mean:0.99 validation has the mask of the moving average of the scores, of which each
  update keeps 0.99;
- holding:0.1 a weight that is kept stays until its score is a tenth below the threshold
  (hysteresis).

Loss can be measured so, nothing more: tickets know nothing of these masks.
"""

import os
from typing import Dict, List, Tuple

import torch
from torch import Tensor

import onelayer_lottery
from onelayer_lottery.modules import MaskedWeight

METHOD, _, VALUE = os.environ.get("METHOD", "").partition(":")
_met: List[MaskedWeight] = []  # in the order in which the model first uses them
_last: Dict[MaskedWeight, Tensor] = {}  # what a method keeps from update to update
_common: Dict[Tuple[int, int], Tensor] = {}  # threshold by update and number of tensors


def _factors(magnitude: Tensor, threshold: Tensor, softness: float) -> Tensor:
    hard = (magnitude >= threshold).float()
    return hard.lerp((magnitude / (2 * threshold)).clamp(max=1), softness)


def _threshold(magnitude: Tensor, keep: float) -> Tensor:
    dropped = magnitude.numel() - round(keep * magnitude.numel())
    return magnitude.flatten().kthvalue(dropped + 1).values


def _coats(weight: MaskedWeight, magnitude: Tensor, softness: float) -> Tensor:
    keeps = [weight.keep / 2**coat for coat in range(int(VALUE))]
    coats = [_factors(magnitude, _threshold(magnitude, k), softness) for k in keeps]
    power = sum((2 * coat + 1) * keep for coat, keep in enumerate(keeps))
    return sum(coats) * (weight.keep / power) ** 0.5


def _partly_frozen(weight: MaskedWeight, magnitude: Tensor, softness: float) -> Tensor:
    generator = torch.Generator().manual_seed(_met.index(weight))
    fixed = torch.rand(magnitude.shape, generator=generator) < float(VALUE)
    kept = torch.rand(magnitude.shape, generator=generator) < weight.keep
    found = _factors(magnitude, _threshold(magnitude[~fixed], weight.keep), softness)
    return torch.where(fixed, kept.float(), found)


def _global(weight: MaskedWeight, magnitude: Tensor, softness: float) -> Tensor:
    now = (weight._num_updates, len(_met))
    if now not in _common:
        relative = [w.scores.abs().flatten() * w.scores.shape[1] ** 0.5 for w in _met]
        _common.clear()
        _common[now] = _threshold(torch.cat(relative), weight.keep)
    return _factors(magnitude, _common[now] / magnitude.shape[1] ** 0.5, softness)


def _mean(weight: MaskedWeight, magnitude: Tensor, softness: float) -> Tensor:
    if weight.training:
        average = _last.setdefault(weight, weight.scores.detach().clone())
        average.lerp_(weight.scores.detach(), 1 - float(VALUE))
    elif weight in _last:
        magnitude = _last[weight].abs()
    return _factors(magnitude, _threshold(magnitude, weight.keep), softness)


def _holding(weight: MaskedWeight, magnitude: Tensor, softness: float) -> Tensor:
    if weight in _last:
        magnitude = magnitude * (1 + float(VALUE) * _last[weight])
    threshold = _threshold(magnitude, weight.keep)
    _last[weight] = (magnitude >= threshold).float()
    return _factors(magnitude, threshold, softness)


_METHODS = {
    "coats": _coats,
    "frozen": _partly_frozen,
    "global": _global,
    "mean": _mean,
    "holding": _holding,
}


@torch.no_grad()
def _current_product(self: MaskedWeight) -> Tensor:
    if self not in _met:
        _met.append(self)
    if self._stale or self._product is None:
        factors = _METHODS[METHOD](self, self.scores.detach().abs(), self._softness)
        self._product = self.frozen.weight * factors
        self._ready = self._product.clone().requires_grad_()
        self._leading_to_scores, self._stale = None, False
    return self._product


if METHOD not in _METHODS:
    raise SystemExit(f"METHOD is {METHOD!r}; give one of {', '.join(_METHODS)}")
MaskedWeight._current_product = _current_product
print(f"onelayer_lottery {onelayer_lottery.__version__} with masks by {METHOD}:{VALUE}")
