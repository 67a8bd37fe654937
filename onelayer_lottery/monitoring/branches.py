"""Estimate how much each branch of a layer adds to the residual at the start.

For an input of variance 1, the output variance of a branch is the product of the
factors of its matrices: the value and output projections of attention, ignoring its
average, or both matrices of a feed-forward block, whose activation passes about half.
"""

from __future__ import annotations

from typing import Dict, Optional

from torch import nn

from onelayer_lottery.core.modules import MaskedLinear

# The sizes in the paper's text give 4 and 2: with them nothing was learned.
LARGEST = 1.5

_BRANCHES = {
    "self-attention": ("self_attn.v_proj", "self_attn.out_proj", 1.0),
    "attention to the encoder": ("encoder_attn.v_proj", "encoder_attn.out_proj", 1.0),
    "feed-forward": ("fc1", "fc2", 0.5),
}


def residual_branches(model: nn.Module) -> Dict[str, float]:
    """Return the variance of each masked branch of the first layers, by its name."""
    variances = {}
    for name, layer in model.named_modules():
        stack, _, index = name.rpartition(".layers.")
        if index != "0":
            continue
        for branch, (first, second, passed) in _BRANCHES.items():
            factors = _factor(layer, first), _factor(layer, second)
            if factors[0] is not None and factors[1] is not None:
                variances[f"{stack} {branch}"] = factors[0] * factors[1] * passed
    return variances


def describe_branches(variances: Dict[str, float]) -> str:
    shown = ", ".join(f"{name} {value:.3g}" for name, value in variances.items())
    start = "variance of residual branches at the start, for an input of variance 1"
    return f"{start}: {shown}"


def warning_of(variances: Dict[str, float]) -> Optional[str]:
    """Return a warning if a branch is so large that nothing is learned."""
    large = {name: value for name, value in variances.items() if value > LARGEST}
    if not large:
        return None
    name = max(large, key=lambda name: large[name])
    return (
        f"the {name} adds a variance of {large[name]:.2g} to a residual of 1: nothing"
        f" was learned above {LARGEST}; lower --mask-gain, or give --mask-preset best"
    )


def _factor(layer: nn.Module, part: str) -> Optional[float]:
    """Return the factor by which a masked matrix scales the variance of its input."""
    for name in part.split("."):
        layer = getattr(layer, name, None)
    if not isinstance(layer, MaskedLinear):
        return None
    masked = layer.masked
    square = masked.frozen.weight.float().pow(2).mean().item()
    return square * masked.keep * layer.in_features
