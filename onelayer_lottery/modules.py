"""Layers whose weight is a frozen tensor: under a learned mask, or as it is."""

from __future__ import annotations

import math
from typing import Iterable, List, Optional, Tuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from onelayer_lottery.frozen import frozen_weight, uniform
from onelayer_lottery.mask import (
    Written,
    soften,
    straight_through,
    top_k_mask,
    turned,
    write_masked,
)

SCORE_SIZES = ("fan-in", "width")
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

    If it is signed, the sign of a kept weight is turned where its score is negative. It
    may have learned scales too: tensors that broadcast to W, by which it is multiplied.
    In the first ``anneal`` updates of a training the mask is soft, less and less; in
    evaluation it never is.

    The product is computed once and kept until the scores change: another number of
    updates from the trainer, a change between training and evaluation, conversion, and
    any change of the scores that torch can see drop it. Code that writes through
    ``scores.data`` outside fairseq's trainer must call ``set_num_updates`` with a new
    number itself.
    """

    def __init__(
        self,
        frozen: Frozen,
        scores: Tensor,
        *,
        keep: float,
        scales: Iterable[Tensor] = (),
        anneal: int = 0,
        signed: bool = False,
    ):
        super().__init__()
        self.frozen = frozen
        self.scores = nn.Parameter(scores)
        self.scores.param_group = "scores"  # for fairseq's composite optimizer
        self.scales = nn.ParameterList(map(nn.Parameter, scales))
        self.keep = keep
        self.anneal = anneal
        self.signed = signed
        self._product: Optional[Tensor] = None  # a buffer, written anew when stale
        self._ready: Optional[Tensor] = None  # the product, for evaluation
        self._unscalable = not len(self.scales)
        self._stale = True
        self._leading_to_scores: Optional[Tensor] = None  # the product, for autograd
        self._written: Optional[Written] = None
        self._product_of: Tuple[int, int] = (0, 0)
        self._num_updates = -1

    def forward(self) -> Tensor:
        if not torch.is_grad_enabled() and self._unscalable:
            self._current_product()
            return self._ready  # many times for each token: nothing more is done here
        return as_parameter(scaled(self._unscaled(), self.scales))

    def _unscaled(self) -> Tensor:
        product = self._current_product()
        if not (torch.is_grad_enabled() and self.scores.requires_grad):
            return product.detach()  # what is done to it stays outside
        # One for all uses of a tied weight: its gradients are summed, then passed on.
        if self._leading_to_scores is None:
            self._leading_to_scores = straight_through(
                self.scores,
                self.frozen.weight,
                product,
                signed=self.signed,
                written=self._written,
            )
        return self._leading_to_scores

    def mask(self) -> Tensor:
        """The positions that are kept now, as booleans; if signed, as -1, 0 and 1."""
        kept = top_k_mask(self.scores, self.keep)
        return turned(kept.char(), self.scores).char() if self.signed else kept

    def set_num_updates(self, num_updates: int) -> None:
        """Forget the product after an update; fairseq tells its number at every batch.

        fairseq's optimizers write through ``.data``, which torch does not count as a
        change of the tensor. In training the new product is written at once, so that
        its memory is taken before that of the pass.
        """
        if num_updates != self._num_updates:
            self._stale = True
        self._num_updates = num_updates
        if self.training:
            self._current_product()

    def _current_product(self) -> Tensor:
        scores = self.scores
        state = (id(scores), scores._version)
        if self._stale or self._product_of != state:
            frozen = self.frozen.weight
            # Not an inference tensor: a later pass may need its gradient.
            with torch.inference_mode(False), torch.no_grad():
                if self.signed:
                    frozen = turned(frozen, scores)
                if self._product is None:
                    self._product = torch.empty_like(frozen)
                    self._ready = as_parameter(self._product.detach())
                self._written = write_masked(
                    scores,
                    frozen,
                    self.keep,
                    out=self._product,
                    last=self._written,
                )
                if self._softness > 0:
                    soften(self._product, scores, frozen, self._softness)
            self._product_of = state
            self._leading_to_scores = None
            self._stale = False
        return self._product

    @property
    def _softness(self) -> float:
        if not (self.training and self.anneal):
            return 0.0
        return max(0.0, 1 - max(self._num_updates, 0) / self.anneal)

    def train(self, mode: bool = True) -> MaskedWeight:
        if mode != self.training:
            self._stale = True
        return super().train(mode)

    def _apply(self, fn, *args):
        self.__dict__.update(_NO_PRODUCT)
        return super()._apply(fn, *args)

    def __getstate__(self):
        return {**self.__dict__, **_NO_PRODUCT}

    def __prepare_scriptable__(self):
        raise TypeError(
            "a masked model cannot be compiled by TorchScript: its weights are computed"
            " from scores; bake it into a stock fairseq model and script that"
        )


_NO_PRODUCT = {
    **dict.fromkeys(("_product", "_ready", "_written", "_leading_to_scores")),
    "_stale": True,
}


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


class FrozenLinear(nn.Module):
    """y = x W^T + b, W frozen and whole; the bias is fixed."""

    def __init__(self, frozen: Frozen, bias: Optional[Tensor] = None):
        super().__init__()
        self.frozen = frozen
        self.register_buffer("bias", bias, persistent=False)
        self.out_features, self.in_features = frozen.weight.shape

    @property
    def weight(self) -> Tensor:
        """The weight (out, in)."""
        return as_parameter(self.frozen.weight.detach())

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight, self.bias)

    def extra_repr(self) -> str:
        return f"{self.in_features}, {self.out_features}"


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
    anneal: int = 0,
    signed: bool = False,
) -> MaskedWeight:
    """Make a masked weight of its own, for use in any torch model.

    >>> layer = MaskedLinear(masked_weight((out_features, in_features), keep=0.5))
    """
    frozen = frozen_weight(seed, role, shape=shape, init=init, keep=keep, fan=fan)
    scores = draw_scores(seed, role, shape)
    return MaskedWeight(Frozen(frozen), scores, keep=keep, anneal=anneal, signed=signed)


def as_parameter(weight: Tensor) -> Tensor:
    """Let a weight without a gradient pass for a stock parameter in evaluation.

    torch multiplies a batch matrix by matrix by what wants no gradient, which is slower
    and rounds differently; a stock parameter wants one, also where none is computed.
    """
    return weight if torch.is_grad_enabled() else weight.requires_grad_()


def scaled(weight: Tensor, scales: Iterable[Tensor]) -> Tensor:
    """Multiply a weight by its scales, in this order wherever it is done."""
    for scale in scales:
        weight = weight * scale
    return weight


def first_scales(shape: Tuple[int, int], kind: str) -> List[Tensor]:
    """Scales of one for a weight (out, in): for the whole, or by row and column."""
    by_row, by_column = torch.ones(shape[0], 1), torch.ones(1, shape[1])
    return {
        "none": [],
        "tensor": [torch.ones(1, 1)],
        "row": [by_row],
        "row-column": [by_row, by_column],
    }[kind]


def score_bound(inputs: int, size: str = "fan-in", *, embedding: bool = False) -> float:
    """The largest first score of a tensor with so many inputs.

    An optimizer such as Adam moves each score by about the learning rate, so the bound
    says what a rate means. An update moves the whole of a sum over the inputs the same
    way: for it to do as much at every width, the part of the scores' range that it
    crosses must fall as 1/sqrt(inputs), which is what "width" does; at 128 inputs it
    equals "fan-in". An embedding is looked up and not summed: its bound is the same at
    every width.
    """
    if size == "fan-in":
        return 1 / math.sqrt(inputs)
    return 1 / math.sqrt(512) if embedding else math.sqrt(inputs) / 128


def draw_scores(
    seed: int,
    name: str,
    shape: Tuple[int, int],
    *,
    bound: Optional[float] = None,
    out: Optional[Tensor] = None,
) -> Tensor:
    """Draw a tensor's first scores: U(-bound, bound), see ``score_bound``."""
    bound = score_bound(shape[1]) if bound is None else bound
    return uniform(seed, f"scores/{name}", shape=shape, bound=bound, out=out)
