"""Layers with a frozen weight, under a learned mask or without one."""

from __future__ import annotations

import math
from typing import Iterable, List, Optional, Tuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from onelayer_lottery.core.frozen import frozen_weight, uniform
from onelayer_lottery.core.mask import flip_signs, straight_through, top_k_mask
from onelayer_lottery.core.methods import METHODS

SCORE_SIZES = ("fan-in", "width")
HALF = (torch.float16, torch.bfloat16)
IMPORTED = "imported_version"  # name of an imported tensor in a state dict


class Frozen(nn.Module):
    """A tensor that is never trained, stored once and shared by many layers.

    It is a buffer of a shared module, so that layers with the same ``Frozen`` still
    share it after half(), to(), deepcopy and pickling. The state dict does not contain
    a random one, which its seed draws again: checkpoints stay small, and averaging
    them cannot change it. It contains an imported one, whose file may be gone.
    """

    def __init__(self, weight: Tensor, *, imported: bool = False):
        super().__init__()
        # fairseq's moving average skips names that contain "version".
        self._name = IMPORTED if imported else "drawn"
        self.register_buffer(self._name, weight, persistent=imported)

    @property
    def weight(self) -> Tensor:
        return getattr(self, self._name)


class MaskedWeight(nn.Module):
    """W = frozen * M, M = top-k(|S|): a weight of which only the scores S are learned.

    ``method`` names another M of ``methods.METHODS``. Learned scales, tensors that
    broadcast to W, multiply it. In the first ``anneal`` updates of a training the mask
    is soft, less and less; in evaluation it never is.

    W is computed once and cached. It is computed again when the trainer gives another
    number of updates, between training and evaluation, after a conversion, and after
    any change of the scores that torch counts. Code outside fairseq's trainer that
    writes through ``scores.data`` must call ``set_num_updates`` with a new number.

    In a model of half precision the scores stay as they are: rounded, hundreds of them
    would tie at the threshold, and the mask would not be that of the fp32 model.
    """

    def __init__(
        self,
        frozen: Frozen,
        scores: Tensor,
        *,
        keep: float,
        scales: Iterable[Tensor] = (),
        anneal: int = 0,
        method: str = "topk",
    ):
        super().__init__()
        self.frozen = frozen
        self.scores = nn.Parameter(scores)
        self.scores.param_group = "scores"  # for fairseq's composite optimizer
        self.scales = nn.ParameterList(map(nn.Parameter, scales))
        self.keep = keep
        self.anneal = anneal
        self.method = METHODS[method]()
        self.num_updates = -1
        self._has_scales = len(self.scales) > 0
        self._product: Optional[_Product] = None

    def forward(self) -> Tensor:
        if not torch.is_grad_enabled() and not self._has_scales:
            # Beam search comes here many times for each token: do nothing more.
            return self._current().parameter
        return as_parameter(scaled(self._unscaled(), self.scales))

    def _unscaled(self) -> Tensor:
        product = self._current()
        if not (torch.is_grad_enabled() and self.scores.requires_grad):
            return product.values.detach()  # a caller must not change the cache
        # One for all uses of a tied weight, so that backward runs once on their sum.
        if product.differentiable is None:
            product.differentiable = straight_through(
                self.scores,
                self.frozen.weight,
                product.values,
                signed=self.method.signed,
            )
        return product.differentiable

    def mask(self) -> Tensor:
        """The top-k mask of the scores as booleans; if signed, as -1, 0 and 1."""
        kept = top_k_mask(self.scores, self.keep)
        return (
            flip_signs(kept.char(), self.scores).char() if self.method.signed else kept
        )

    @property
    def softness(self) -> float:
        """How soft the mask is now: 1 at the first update, 0 after annealing."""
        if not (self.training and self.anneal):
            return 0.0
        return max(0.0, 1 - max(self.num_updates, 0) / self.anneal)

    def set_num_updates(self, num_updates: int) -> None:
        """Compute W again after an update; fairseq calls this before every batch.

        fairseq's optimizers write through ``.data``, which torch does not count as a
        change. In training W is computed at once, so that its memory is allocated
        before that of the activations.
        """
        self.num_updates = num_updates
        if self.training:
            self._current()

    def _current(self) -> _Product:
        scores, product = self.scores, self._product
        state = (id(scores), scores._version, self.num_updates, self.training)
        if product is None or product.state != state:
            # Not an inference tensor: a later pass may need its gradient.
            with torch.inference_mode(False), torch.no_grad():
                if product is None:
                    product = self._product = _Product(self.frozen.weight)
                self.method.write(self, out=product.values)
            product.state, product.differentiable = state, None
        return product

    def _apply(self, fn, *args):
        self._product = None
        exact = (self.scores, self.scores.grad)

        def move(tensor: Tensor) -> Tensor:
            moved = fn(tensor)
            if moved.dtype in HALF and any(tensor is e for e in exact):
                return tensor.to(moved.device)
            return moved

        return super()._apply(move, *args)

    def __getstate__(self):
        return {**self.__dict__, "_product": None}

    def __prepare_scriptable__(self):
        raise TypeError(
            "a masked model cannot be compiled by TorchScript: its weights are computed"
            " from scores; bake it into a stock fairseq model and script that"
        )


class _Product:
    """The cached W, unscaled: valid for one state of the scores."""

    def __init__(self, like: Tensor):
        self.values = torch.empty_like(like)  # written again in place
        self.parameter = as_parameter(self.values.detach())  # for evaluation
        self.differentiable: Optional[Tensor] = None  # leads to the scores
        self.state: Tuple = ()


class MaskedLinear(nn.Module):
    """y = x (W * M)^T + b, M = top-k(|S|); the bias is fixed unless it is a parameter.

    It is not an nn.Linear, whose weight is a parameter. fairseq's attention reads the
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
    method: str = "topk",
) -> MaskedWeight:
    """Make a masked weight for any torch model.

    >>> layer = MaskedLinear(masked_weight((out_features, in_features), keep=0.5))
    """
    frozen = frozen_weight(seed, role, shape=shape, init=init, keep=keep, fan=fan)
    scores = draw_scores(seed, role, shape)
    return MaskedWeight(Frozen(frozen), scores, keep=keep, anneal=anneal, method=method)


def as_parameter(weight: Tensor) -> Tensor:
    """Set requires_grad on a weight in evaluation, as a stock parameter has it.

    Without it torch multiplies a batch one matrix at a time, which is slower and rounds
    differently from the stock model. No gradient is computed in either case.
    """
    return weight if torch.is_grad_enabled() else weight.requires_grad_()


def scaled(weight: Tensor, scales: Iterable[Tensor]) -> Tensor:
    """Multiply a weight by its scales, always in the same order."""
    for scale in scales:
        weight = weight * scale
    return weight


def first_scales(shape: Tuple[int, int], per: str) -> List[Tensor]:
    """Make scales of 1 for a weight (out, in), as --mask-scale names them."""
    by_row, by_column = torch.ones(shape[0], 1), torch.ones(1, shape[1])
    return {
        "none": [],
        "tensor": [torch.ones(1, 1)],
        "row": [by_row],
        "row-column": [by_row, by_column],
    }[per]


def score_bound(inputs: int, size: str = "fan-in", *, embedding: bool = False) -> float:
    """The largest first score of a weight with this number of inputs.

    Adam moves each score by about the learning rate, so the bound gives a rate its
    meaning. One update moves all inputs of a sum the same way. For an update to change
    the sum equally at every width, the fraction of the scores' range that it crosses
    must fall as 1/inputs: that is "width", which equals "fan-in" at 128 inputs. An
    embedding is looked up, not summed: its bound is the same at every width.
    """
    if size == "fan-in":
        return 1 / math.sqrt(inputs)
    return 1 / math.sqrt(512) if embedding else inputs / 128**1.5


def draw_scores(
    seed: int,
    name: str,
    shape: Tuple[int, int],
    *,
    bound: Optional[float] = None,
    out: Optional[Tensor] = None,
) -> Tensor:
    """Draw the first scores of a tensor from U(-bound, bound), see ``score_bound``."""
    bound = score_bound(shape[1]) if bound is None else bound
    return uniform(seed, f"scores/{name}", shape=shape, bound=bound, out=out)
