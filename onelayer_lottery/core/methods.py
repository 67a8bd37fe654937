"""Mask methods: what a mask does with the scores. docs/methods.md shows how to add one.

``METHODS`` holds them by the name that ``--mask-method`` takes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Dict, Iterable, List, Optional, Tuple, Type

import torch
from torch import Tensor

from onelayer_lottery.core.mask import (
    ThresholdHint,
    flip_signs,
    kept_count,
    soften,
    write_masked,
)
from onelayer_lottery.core.selection import on_accelerator, selection_for

if TYPE_CHECKING:
    from onelayer_lottery.core.modules import MaskedWeight


class MaskMethod:
    """W = frozen * M; subclasses compute M.

    Each masked weight has an object of its own, which may keep state from one update to
    the next. Backward treats M as |S|, or as S if the method is ``signed``.
    """

    signed = False

    def mask(self, weight: MaskedWeight) -> Tensor:
        """Return M, called without gradients whenever the scores have changed.

        A weight has ``scores``, ``keep``, ``softness``, ``num_updates``, ``training``
        and ``frozen.weight``.
        """
        raise NotImplementedError

    def write(self, weight: MaskedWeight, *, out: Tensor) -> None:
        """Write W to ``out``; override it where W is cheaper without M."""
        torch.mul(weight.frozen.weight, self.mask(weight).to(out.dtype), out=out)


class TopK(MaskMethod):
    """M = top-k(|S|); a soft mask mixes it with min(|S| / 2t, 1)."""

    def __init__(self) -> None:
        self.selected: Optional[Tensor] = None  # the next mask, by SelectTogether
        self._hint: Optional[ThresholdHint] = None

    def write(self, weight: MaskedWeight, *, out: Tensor) -> None:
        scores, frozen = weight.scores, weight.frozen.weight
        if self.signed:
            frozen = flip_signs(frozen, scores)
        if self.selected is not None:
            torch.mul(frozen, self.selected, out=out)
            self.selected = None
        else:
            self._hint = write_masked(
                scores, frozen, weight.keep, out=out, hint=self._hint
            )
        if weight.softness > 0:
            soften(out, scores, frozen, weight.softness)


class Signed(TopK):
    """M = top-k(|S|) * sign(S)."""

    signed = True


class SelectTogether:
    """Selects the top-k masks of a model on an accelerator all at once.

    One by one, each mask would take about as many kernels as all of them together.
    """

    def __init__(self) -> None:
        self._selections: Dict[Tuple, Any] = {}

    def before_update(self, weights: Iterable[MaskedWeight]) -> None:
        """Give every weight on an accelerator the mask that it will write next."""
        groups: Dict[Tuple, List[Tuple[Tensor, int, TopK]]] = {}
        for weight in weights:
            scores = weight.scores
            kept = kept_count(scores.numel(), weight.keep)
            method = weight.method
            if (
                isinstance(method, TopK)
                and weight.training  # else it is not written now
                and on_accelerator(scores)
                and 0 < kept < scores.numel()
            ):
                group = groups.setdefault((scores.device, scores.dtype), [])
                group.append((scores, kept, method))
        used = {}
        for (device, dtype), group in groups.items():
            tensors, kept_counts, methods = zip(*group)
            sizes = tuple(tensor.numel() for tensor in tensors)
            key = (device, dtype, sizes, kept_counts)
            used[key] = self._selections.get(key) or selection_for(
                sizes, kept_counts, device=device
            )
            for method, mask in zip(methods, used[key].masks(tensors)):
                method.selected = mask
        self._selections = used  # drops those of another device


METHODS: Dict[str, Type[MaskMethod]] = {"topk": TopK, "signed": Signed}
