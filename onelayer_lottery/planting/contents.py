"""What a planted model holds: its masked weights, its frozen tensors, their number."""

from __future__ import annotations

from typing import Iterator, Tuple

from torch import Tensor, nn

from onelayer_lottery.core.modules import Frozen, MaskedWeight


def masked_weights(model: nn.Module) -> Iterator[Tuple[str, MaskedWeight]]:
    """Yield each masked weight once, with the name of the first layer that has it."""
    for name, module in model.named_modules():
        if isinstance(module, MaskedWeight):
            yield name.rpartition(".")[0], module


def frozen_tensors(model: nn.Module) -> Iterator[Tensor]:
    """Yield each frozen tensor once, however many layers share it."""
    for module in model.modules():
        if isinstance(module, Frozen):
            yield module.weight


def describe(model: nn.Module) -> str:
    """Count what is masked, frozen and trained, as a line for the log."""
    masks = [weight for _, weight in masked_weights(model)]
    scores = {id(weight.scores) for weight in masks}
    trained = sum(
        parameter.numel()
        for parameter in model.parameters()
        if parameter.requires_grad and id(parameter) not in scores
    )
    frozen = list(frozen_tensors(model))
    return (
        f"{len(masks)} masks of {sum(w.scores.numel() for w in masks):,} scores over"
        f" {len(frozen)} frozen tensors of {sum(t.numel() for t in frozen):,} weights,"
        f" {trained:,} values trained densely"
    )
