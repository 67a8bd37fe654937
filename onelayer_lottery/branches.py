"""What the layers of a stack add to its residual stream at the start of a training.

A branch on input of variance 1 puts out the product of what its matrices do to it:
value and output projection of an attention, before it averages; both matrices of a
feed-forward layer, of which the activation passes about half.
"""

from __future__ import annotations

from typing import Dict, Optional

from torch import nn

from onelayer_lottery.modules import MaskedLinear

# Sizes as in the paper's text give 4 and 2 here, and nothing was learned with them.
LARGEST = 1.5

_BRANCHES = {
    "self-attention": ("self_attn.v_proj", "self_attn.out_proj", 1.0),
    "attention to the encoder": ("encoder_attn.v_proj", "encoder_attn.out_proj", 1.0),
    "feed-forward": ("fc1", "fc2", 0.5),
}


def residual_branches(model: nn.Module) -> Dict[str, float]:
    """The variance of each masked branch of the first layers, by stack and branch."""
    found = {}
    for name, layer in model.named_modules():
        stack, _, index = name.rpartition(".layers.")
        if index != "0":
            continue
        for branch, (first, second, passed) in _BRANCHES.items():
            factors = [_factor(layer, part) for part in (first, second)]
            if None not in factors:
                found[f"{stack} {branch}"] = factors[0] * factors[1] * passed
    return found


def describe_branches(variances: Dict[str, float]) -> str:
    shown = ", ".join(f"{name} {value:.3g}" for name, value in variances.items())
    return f"variance of residual branches at the start, of input 1: {shown}"


def warning_of(variances: Dict[str, float]) -> Optional[str]:
    """Say so where sizes are such that nothing was learned with them."""
    large = {name: value for name, value in variances.items() if value > LARGEST}
    if not large:
        return None
    name = max(large, key=lambda name: large[name])
    return (
        f"the {name} adds a variance of {large[name]:.2g} to a residual of 1: nothing"
        f" was learned above {LARGEST}; lower --mask-gain, or give --mask-preset best"
    )


def _factor(layer: nn.Module, part: str) -> Optional[float]:
    """By how much a masked matrix multiplies the variance of its input."""
    for name in part.split("."):
        layer = getattr(layer, name, None)
    if not isinstance(layer, MaskedLinear):
        return None
    masked = layer.masked
    square = masked.frozen.weight.float().pow(2).mean().item()
    return square * masked.keep * layer.in_features
