"""Reservoir layers: layers of a stack that stay random, and what they compute.

Each replaces a stock layer and takes over its width, dropout, norm, and the order of
norm and residual. With f as below and N the norm, it computes

    y = N(x + dropout(f(x)))        or, with --encoder-normalize-before,
    y = x + dropout(f(N(x)))

    ffn     f(x) = W2 a(W1 x), a the model's activation
    bigru   f(x) = [GRU forwards, GRU backwards], half of the width each, no biases
    cnn     f(x) = relu(W [x(t-1), x(t), x(t+1)]), in a decoder of x(t-2), x(t-1), x(t)

The type transformer is the stock layer itself. All weights are in linear layers, so
that planting freezes or masks them like any others.
"""

from __future__ import annotations

from typing import Any, Callable, Dict, Optional

import torch
import torch.nn.functional as F
from fairseq.incremental_decoding_utils import FairseqIncrementalState
from torch import Tensor, nn

KERNEL = 3  # positions that a cnn sees at a time

_State = Dict[str, Dict[str, Optional[Tensor]]]


def reservoir_layer(stock: nn.Module, layer_type: str) -> nn.Module:
    """Return the layer of a type that replaces a stock one; it is not frozen yet."""
    if layer_type == "transformer":
        return stock
    side = "decoder" if hasattr(stock, "encoder_attn") else "encoder"
    return _LAYERS[side, layer_type](stock).train(stock.training)


def skip_backward(layer: nn.Module) -> None:
    """Let the gradient skip a layer: y = f(x), but dL/dx = dL/dy.

    That is y = x + stop(f(x) - x) without its rounding: backward treats the layer,
    norms included, as its residual path, and computes nothing in it. Other inputs, such
    as the output of the encoder, get no gradient from it.
    """
    # Activation checkpointing has replaced forward; no activation is left to save.
    layer.__dict__.pop("forward", None)
    layer.__dict__.pop("precheckpoint_forward", None)
    layer.__class__ = _skipping(type(layer))


class _SkipBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x: Tensor, y: Tensor) -> Tensor:
        return y.view_as(y)

    @staticmethod
    def backward(ctx, grad: Tensor):
        return grad, None


def _skipping(layer_type: Any) -> type:
    def forward(self, x: Tensor, *inputs: Any, **named: Any) -> Any:
        with torch.no_grad():
            output = layer_type.forward(self, x, *inputs, **named)
        if isinstance(output, tuple):
            return (_SkipBackward.apply(x, output[0]), *output[1:])
        return _SkipBackward.apply(x, output)

    if layer_type not in _SKIPPING:
        name = layer_type.__name__
        _SKIPPING[layer_type] = type(name, (layer_type,), {"forward": forward})
    return _SKIPPING[layer_type]


_SKIPPING: Dict[type, type] = {}


class _Reservoir(nn.Module):
    """The residual path and norm around ``inner``; x is (time, batch, width)."""

    load_to_BT = False  # fairseq 0.12.2 asks the first layer for its fast path
    inner: Callable[[Tensor, Optional[Tensor], Optional[_State]], Tensor]

    def __init__(self, stock: nn.Module):
        super().__init__()
        self.normalize_before = stock.normalize_before
        self.dropout_module = stock.dropout_module
        self.final_layer_norm = stock.final_layer_norm

    def residual(
        self, x: Tensor, padding: Optional[Tensor], state: Optional[_State] = None
    ) -> Tensor:
        normed = self.final_layer_norm(x) if self.normalize_before else x
        x = x + self.dropout_module(self.inner(normed, padding, state))
        return x if self.normalize_before else self.final_layer_norm(x)

    def upgrade_state_dict_named(self, state_dict: Dict, name: str) -> None:
        """Do nothing when fairseq's encoder calls it: there are no old versions."""


class _InEncoder(_Reservoir):
    def forward(
        self,
        x: Tensor,
        encoder_padding_mask: Optional[Tensor] = None,
        attn_mask: Optional[Tensor] = None,
    ) -> Tensor:
        return self.residual(x, encoder_padding_mask)


class _InDecoder(_Reservoir):
    def forward(
        self,
        x: Tensor,
        encoder_out: Optional[Tensor] = None,
        encoder_padding_mask: Optional[Tensor] = None,
        incremental_state: Optional[_State] = None,
        prev_self_attn_state: Any = None,
        prev_attn_state: Any = None,
        self_attn_mask: Optional[Tensor] = None,
        self_attn_padding_mask: Optional[Tensor] = None,
        need_attn: bool = False,
        need_head_weights: bool = False,
    ):
        return self.residual(x, self_attn_padding_mask, incremental_state), None, None


class _FeedForward(_Reservoir):
    """f(x) = W2 a(W1 x): position by position, no attention."""

    def __init__(self, stock: nn.Module):
        super().__init__(stock)
        self.fc1, self.fc2 = stock.fc1, stock.fc2
        self.activation_fn = stock.activation_fn
        self.activation_dropout_module = stock.activation_dropout_module

    def inner(
        self, x: Tensor, padding: Optional[Tensor], state: Optional[_State]
    ) -> Tensor:
        hidden = self.activation_dropout_module(self.activation_fn(self.fc1(x)))
        return self.fc2(hidden)


class _BiGru(_Reservoir):
    """f(x) = [GRU forwards, GRU backwards], each of half the width, without biases.

    Padding is set to zero. Without biases a zero state stays zero on it, so the side on
    which a sentence is padded does not matter.
    """

    def __init__(self, stock: nn.Module):
        super().__init__(stock)
        half = stock.embed_dim // 2
        for way in ("forwards", "backwards"):
            inputs = nn.Linear(stock.embed_dim, 3 * half, bias=False)
            setattr(self, f"input_{way}", inputs)
            setattr(self, f"hidden_{way}", nn.Linear(half, 3 * half, bias=False))

    def inner(
        self, x: Tensor, padding: Optional[Tensor], state: Optional[_State]
    ) -> Tensor:
        x = _without_padding(x, padding)
        weights = [
            getattr(self, f"{part}_{way}").weight
            for way in ("forwards", "backwards")
            for part in ("input", "hidden")
        ]
        start = x.new_zeros(2, x.shape[1], x.shape[2] // 2)
        # has_biases, num_layers, dropout, train, bidirectional, batch_first
        output, _ = torch.gru(x, start, weights, False, 1, 0.0, False, True, False)
        return output


class _Cnn(_Reservoir):
    """f(x) = relu(W [x(t-1), x(t), x(t+1)]): zero beyond both ends."""

    before = KERNEL // 2

    def __init__(self, stock: nn.Module):
        super().__init__(stock)
        self.conv = nn.Linear(KERNEL * stock.embed_dim, stock.embed_dim)

    def inner(
        self, x: Tensor, padding: Optional[Tensor], state: Optional[_State]
    ) -> Tensor:
        x = _without_padding(x, padding)
        after = KERNEL - 1 - self.before
        return self.convolve(F.pad(x, (0, 0, 0, 0, self.before, after)))

    def convolve(self, x: Tensor) -> Tensor:
        weight = self.conv.weight  # (out, in * kernel)
        weight = weight.view(weight.shape[0], -1, KERNEL)
        output = F.conv1d(x.permute(1, 2, 0), weight, self.conv.bias)
        return F.relu(output).permute(2, 0, 1)


class _EncoderFeedForward(_FeedForward, _InEncoder):
    pass


class _DecoderFeedForward(_FeedForward, _InDecoder):
    pass


class _EncoderBiGru(_BiGru, _InEncoder):
    pass


class _EncoderCnn(_Cnn, _InEncoder):
    pass


class _DecoderCnn(FairseqIncrementalState, _Cnn, _InDecoder):
    """f(x) = relu(W [x(t-2), x(t-1), x(t)]); keeps two inputs."""

    before = KERNEL - 1

    def inner(
        self, x: Tensor, padding: Optional[Tensor], state: Optional[_State]
    ) -> Tensor:
        if state is None:
            return super().inner(x, padding, state)
        kept = self.get_incremental_state(state, "window")
        earlier = kept["inputs"] if kept else x.new_zeros(self.before, *x.shape[1:])
        window = torch.cat([earlier, _without_padding(x, padding)])
        inputs = window[-self.before :]
        self.set_incremental_state(state, "window", {"inputs": inputs})
        return self.convolve(window)

    def reorder_incremental_state(self, state: _State, new_order: Tensor) -> None:
        """Reorder the state with the beams; called by fairseq's decoder."""
        kept = self.get_incremental_state(state, "window")
        if kept:
            inputs = kept["inputs"].index_select(1, new_order)
            self.set_incremental_state(state, "window", {"inputs": inputs})


_LAYERS = {
    ("encoder", "ffn"): _EncoderFeedForward,
    ("decoder", "ffn"): _DecoderFeedForward,
    ("encoder", "bigru"): _EncoderBiGru,
    ("encoder", "cnn"): _EncoderCnn,
    ("decoder", "cnn"): _DecoderCnn,
}


def _without_padding(x: Tensor, padding: Optional[Tensor]) -> Tensor:
    """Set x to zero where padding (batch, time) is true."""
    return x if padding is None else x.masked_fill(padding.t().unsqueeze(-1), 0)
