"""Masked layers: stock layers whose weight is a frozen tensor under a learned mask."""

from __future__ import annotations

import math
from typing import Optional, Tuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from onelayer_lottery.frozen import frozen_weight, uniform
from onelayer_lottery.mask import straight_through, top_k_mask

IMPORTED = "imported_version"  # name of an imported tensor in a state dict


class Frozen(nn.Module):
    """A tensor that is never trained, held once and shared by many layers.

    It is a buffer of a shared module: layers that hold the same ``Frozen`` go on
    sharing it through half(), to(), deepcopy and pickling. A random one is not in the
    state dict, because its seed is enough to draw it again: a checkpoint does not hold
    it, and averaging cannot change it. An imported one is, for the file that it came
    from may be gone.
    """

    def __init__(self, weight: Tensor, *, imported: bool = False):
        super().__init__()
        # fairseq's moving average leaves alone what has "version" in its name.
        self._name = IMPORTED if imported else "drawn"
        self.register_buffer(self._name, weight, persistent=imported)

    @property
    def weight(self) -> Tensor:
        return getattr(self, self._name)


class MaskedWeight(nn.Module):
    """W = frozen * M, M = top-k(|S|): a weight of which only the scores S are learned.

    The product is computed once and kept until the scores change: another number of
    updates from the trainer, a change between training and evaluation, conversion, and
    any change of the scores that torch can see drop it. Code that writes through
    ``scores.data`` outside fairseq's trainer must call ``set_num_updates`` with a new
    number itself.
    """

    def __init__(self, frozen: Frozen, scores: Tensor, *, keep: float):
        super().__init__()
        self.frozen = frozen
        self.scores = nn.Parameter(scores)
        self.keep = keep
        self._product: Optional[Tensor] = None
        self._product_of: Tuple[int, int] = (0, 0)
        self._num_updates = -1

    def forward(self) -> Tensor:
        product = self._current_product()
        if torch.is_grad_enabled() and self.scores.requires_grad:
            return straight_through(self.scores, self.frozen.weight, product)
        return product

    def mask(self) -> Tensor:
        """The positions that are kept now, as booleans."""
        return top_k_mask(self.scores, self.keep)

    def set_num_updates(self, num_updates: int) -> None:
        """Forget the product after an update; fairseq tells its number at every batch.

        fairseq's optimizers write through ``.data``, which torch does not count as a
        change of the tensor.
        """
        if num_updates != self._num_updates:
            self._product = None
        self._num_updates = num_updates

    def _current_product(self) -> Tensor:
        state = (id(self.scores), self.scores._version)
        if self._product is None or self._product_of != state:
            # Not an inference tensor: a later pass may need its gradient.
            with torch.inference_mode(False), torch.no_grad():
                # A product with booleans takes torch twice as long.
                mask = self.mask().to(self.frozen.weight.dtype)
                self._product = mask.mul_(self.frozen.weight)
            self._product_of = state
        return self._product

    def train(self, mode: bool = True) -> MaskedWeight:
        if mode != self.training:
            self._product = None
        return super().train(mode)

    def _apply(self, fn, *args):
        self._product = None
        return super()._apply(fn, *args)

    def __getstate__(self):
        return {**self.__dict__, "_product": None}

    def __prepare_scriptable__(self):
        raise TypeError(
            "a masked model cannot be compiled by TorchScript: its weights are computed"
            " from scores; bake it into a stock fairseq model and script that"
        )


class MaskedLinear(nn.Module):
    """y = x (W * M)^T + b, M = top-k(|S|); a bias that is no parameter is fixed.

    Not a subclass of nn.Linear, whose weight is a parameter: fairseq's attention reads
    ``weight`` and ``bias`` of its projections and never calls them.
    """

    def __init__(self, masked: MaskedWeight, bias: Optional[Tensor] = None):
        super().__init__()
        self.masked = masked
        if bias is None or isinstance(bias, nn.Parameter):
            self.register_parameter("bias", bias)
        else:
            self.register_buffer("bias", bias, persistent=False)
        self.out_features, self.in_features = masked.frozen.weight.shape

    @property
    def weight(self) -> Tensor:
        """The effective weight (out, in)."""
        return self.masked()

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight, self.bias)

    def extra_repr(self) -> str:
        return f"{self.in_features}, {self.out_features}, keep={self.masked.keep}"


class MaskedEmbedding(nn.Module):
    """y = (W * M)[token], M = top-k(|S|)."""

    def __init__(self, masked: MaskedWeight, padding_idx: Optional[int] = None):
        super().__init__()
        self.masked = masked
        self.padding_idx = padding_idx
        self.num_embeddings, self.embedding_dim = masked.frozen.weight.shape

    @property
    def weight(self) -> Tensor:
        """The effective matrix (symbols, dimension)."""
        return self.masked()

    def forward(self, tokens: Tensor) -> Tensor:
        return F.embedding(tokens, self.weight, self.padding_idx)

    def extra_repr(self) -> str:
        return f"{self.num_embeddings}, {self.embedding_dim}, keep={self.masked.keep}"


def masked_weight(
    shape: Tuple[int, int],
    *,
    keep: float = 0.5,
    seed: int = 1,
    role: str = "weight",
    init: str = "kaiming-uniform",
    fan: str = "kept",
) -> MaskedWeight:
    """Make a masked weight of its own, for use in any torch model.

    >>> layer = MaskedLinear(masked_weight((out_features, in_features), keep=0.5))
    """
    frozen = frozen_weight(seed, role, shape=shape, init=init, keep=keep, fan=fan)
    return MaskedWeight(Frozen(frozen), draw_scores(seed, role, shape), keep=keep)


def draw_scores(seed: int, name: str, shape: Tuple[int, int]) -> Tensor:
    """Draw a tensor's first scores: U(-1/sqrt(in), 1/sqrt(in)), as in the paper."""
    return uniform(seed, f"scores/{name}", shape=shape, bound=1 / math.sqrt(shape[1]))
