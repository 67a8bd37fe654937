"""Replace planted layers by stock layers that hold the effective weights."""

from __future__ import annotations

from typing import Dict

import torch
from torch import nn

from onelayer_lottery.core.modules import FrozenLinear, MaskedEmbedding, MaskedLinear


def bake_layers(model: nn.Module) -> None:
    """Replace planted layers by stock layers with the effective weights, in place.

    Generation is then as fast as with a stock model. Tied weights stay tied. Scores and
    frozen tensors are dropped, except those of RoBERTa's language model head. The model
    must be in evaluation mode: in training a mask may be soft.
    """
    weights: Dict[nn.Module, nn.Parameter] = {}  # by masked weight or frozen tensor
    planted = (MaskedLinear, MaskedEmbedding, FrozenLinear)
    for name, layer in list(model.named_modules(remove_duplicate=False)):
        if not isinstance(layer, planted):
            continue
        source = layer.frozen if isinstance(layer, FrozenLinear) else layer.masked
        if source not in weights:
            with torch.no_grad():
                weights[source] = nn.Parameter(layer.weight.detach())
        parent, _, child = name.rpartition(".")
        setattr(model.get_submodule(parent), child, _stock(layer, weights[source]))


def _stock(planted: nn.Module, weight: nn.Parameter) -> nn.Module:
    if isinstance(planted, MaskedEmbedding):
        size = (planted.num_embeddings, planted.embedding_dim)
        layer: nn.Module = nn.Embedding(*size, planted.padding_idx, device="meta")
    else:
        size = (planted.in_features, planted.out_features)
        layer = nn.Linear(*size, bias=False, device="meta")
        if planted.bias is not None:
            layer.bias = nn.Parameter(planted.bias.detach())
    layer.weight = weight
    return layer.eval()
