"""Planting: a stock fairseq model becomes a masked one. The only walk over a model.

Every parameter of the stock model meets one of three fates. Weights of linear layers
and embeddings become frozen and masked. Norms, biases, learned positions and the
classification head are trained densely if the configuration asks for it, else fixed or
masked. What was not foreseen is an error.

Nothing here assumes an encoder and a decoder.
"""

from __future__ import annotations

import logging
import math
from dataclasses import replace
from typing import Dict, Iterator, Optional, Tuple

import torch
from fairseq.models.roberta import RobertaLMHead
from torch import Tensor, nn

from onelayer_lottery.compat import remove_fast_path
from onelayer_lottery.config import MaskConfig
from onelayer_lottery.errors import LotteryError
from onelayer_lottery.fitting import fit
from onelayer_lottery.frozen import uniform
from onelayer_lottery.lm_head import MaskedLMHead
from onelayer_lottery.mask import kept_count
from onelayer_lottery.modules import (
    Frozen,
    FrozenLinear,
    MaskedEmbedding,
    MaskedLinear,
    MaskedWeight,
    draw_scores,
    first_scales,
    score_bound,
)
from onelayer_lottery.reservoir import reservoir_layer, skip_backward
from onelayer_lottery.reservoir_config import ReservoirConfig
from onelayer_lottery.roles import (
    import_scale,
    is_dense_head,
    kind_of,
    random_weight,
    role_of,
    set_first_value,
)

logger = logging.getLogger(__name__)


def plant(
    model: nn.Module,
    config: MaskConfig,
    *,
    imports: Optional[Dict[str, Tensor]] = None,
    start: Optional[Dict[str, Tensor]] = None,
    max_update: int = 0,
    prefix: str = "",
) -> None:
    """Make a stock model masked, in place; call it last, when all else is built.

    ``imports`` has matrices (symbols, dimension) to be used in place of random ones, by
    the name of their embedding. ``start`` has the tensors of a trained model of the
    same shape, by name: all that is learned here starts as close to it as it can.
    ``max_update`` is the length of the training, for what is scheduled. Of a part that
    comes to a planted model later, ``prefix`` is the name with a dot.
    """
    remove_fast_path(model)
    start, imports = start or {}, imports or {}
    anneal = round(config.mask_anneal * max_update)
    planter = _Planter(config, imports, start, anneal, prefix)
    planter.settle_unmasked(model)
    _settle_dense_parameters(model, config, imports, start, prefix)
    planter.plant(model)
    logger.info("planted %s%s | %s", prefix, describe(model), config.signature())


def plant_reservoirs(
    model: nn.Module,
    config: ReservoirConfig,
    layers: Dict[str, bool],
    *,
    imports: Optional[Dict[str, Tensor]] = None,
    max_update: int = 0,
) -> None:
    """Make the named layers of a stock model reservoirs, in place; call it last.

    ``layers`` says whether each has masks. All else stays as it is, to be trained;
    ``imports`` has first values for embeddings.
    """
    remove_fast_path(model)
    for name, matrix in (imports or {}).items():
        model.get_submodule(name).weight.detach().copy_(matrix)
    anneal = round(config.mask_anneal * max_update)
    planter = _Planter(config, {}, {}, anneal, "")
    whole = replace(config, mask_train="none")
    for name, masked in layers.items():
        stack, _, index = name.rpartition(".")
        stock = model.get_submodule(name)
        layer = reservoir_layer(stock, str(config.reservoir_type))
        model.get_submodule(stack)[int(index)] = layer
        planter.prefix = f"{name}."
        planter.keep = config.mask_keep if masked else None
        used = config if masked else whole
        _settle_dense_parameters(layer, used, {}, {}, planter.prefix)
        planter.plant(layer)
        if str(config.reservoir_backward) == "skip":
            skip_backward(layer)
    logger.info("planted %s | %s", describe(model), config.signature())


def bake_layers(model: nn.Module) -> None:
    """Put stock layers with the effective weights in place of planted ones, for good.

    For generation, which then costs what it costs with a stock model. Tied weights
    stay tied; scores and frozen tensors are gone but for RoBERTa's head for masked
    words. The model must be in evaluation: in training a mask may be soft.
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


def masked_weights(model: nn.Module) -> Iterator[Tuple[str, MaskedWeight]]:
    """Each masked weight of a model once, with the name of the first layer it is in."""
    for name, module in model.named_modules():
        if isinstance(module, MaskedWeight):
            yield name.rpartition(".")[0], module


def frozen_tensors(model: nn.Module) -> Iterator[Tensor]:
    """Each frozen tensor once, however many layers share it."""
    for module in model.modules():
        if isinstance(module, Frozen):
            yield module.weight


def describe(model: nn.Module) -> str:
    """Count what is masked, frozen and trained, for a person."""
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


def _settle_dense_parameters(
    model: nn.Module,
    config: MaskConfig,
    imports: Dict[str, Tensor],
    start: Dict[str, Tensor],
    prefix: str,
) -> None:
    """Give norms, biases and positions their first value; fix those not trained.

    What is fixed becomes a buffer outside the state dict: no optimizer, average or
    checkpoint can touch it. Imported positions stay in it, for their file may be gone.
    """
    for local, module in model.named_modules():
        layer = prefix + local
        for key, parameter in list(module.named_parameters(recurse=False)):
            kind, name = kind_of(module, key), f"{layer}.{key}"
            if kind == "mask":
                continue
            if kind is None:
                raise TypeError(
                    f"cannot plant {name}: a {type(module).__name__} is neither a"
                    " linear layer, an embedding nor a norm"
                )
            set_first_value(
                parameter, kind=kind, module=module, name=name, seed=config.mask_seed
            )
            trained = kind in config.trained or is_dense_head(layer, config)
            if trained and _fits(start.get(name), parameter):
                parameter.detach().copy_(start[name])
            if layer in imports:
                parameter.detach().copy_(imports[layer])
                parameter.requires_grad_(trained)
            elif not trained:
                del module._parameters[key]
                module.register_buffer(key, parameter.detach(), persistent=False)


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


def _fits(trained: Optional[Tensor], stock: Tensor) -> bool:
    """Whether a trained tensor is there; a head may be new, or of other classes."""
    return trained is not None and trained.shape == stock.shape


class _Planter:
    """Replaces layers, and keeps shared what was shared or is of one role."""

    def __init__(
        self,
        config: MaskConfig,
        imports: Dict[str, Tensor],
        start: Dict[str, Tensor],
        anneal: int,
        prefix: str,
    ):
        self.config = config
        self.imports = imports
        self.start = start
        self.anneal = anneal
        self.prefix = prefix
        self.keep: Optional[float] = config.mask_keep  # None: no masks
        self.frozen: Dict[str, Frozen] = {}  # by role
        self.masked: Dict[nn.Parameter, MaskedWeight] = {}  # by stock weight
        self.layers: Dict[nn.Module, nn.Module] = {}  # by stock layer

    def settle_unmasked(self, model: nn.Module) -> None:
        """Leave unmasked what is trained, or imported to be used whole."""
        unmasked: Dict[nn.Parameter, nn.Parameter] = {}  # by stock weight
        for local, layer in list(model.named_modules(remove_duplicate=False)):
            stock = layer._parameters.get("weight")
            if stock is None or kind_of(layer, "weight") != "mask":
                continue
            first = self._unmasked(self.prefix + local, layer)
            if first is not None:
                unmasked.setdefault(stock, first)
            if stock in unmasked:
                layer.weight = unmasked[stock]
                layer.unmasked = True

    def _unmasked(self, name: str, layer: nn.Module) -> Optional[nn.Parameter]:
        """The first value of a weight without a mask; None for all others."""
        trained = self.start.get(f"{name}.weight")
        fits = _fits(trained, layer.weight)
        if is_dense_head(name, self.config):
            shape = tuple(layer.weight.shape)
            # As fairseq's heads start, but from this seed: U(-1/sqrt(in), 1/sqrt(in)).
            bound = 1 / math.sqrt(shape[1])
            drawn = uniform(self.config.mask_seed, name, shape=shape, bound=bound)
            return nn.Parameter(trained.float() if fits else drawn)
        train = "embed" in self.config.trained
        whole = self.config.mask_embed == "dense" and name in self.imports
        if not isinstance(layer, nn.Embedding) or not (train or whole):
            return None
        if name in self.imports:
            matrix = self.imports[name]
        elif fits:
            matrix = trained.float()
        else:
            matrix = random_weight(name, layer, self.config, keep=1.0)
        return nn.Parameter(matrix, requires_grad=train)

    def plant(self, model: nn.Module) -> None:
        for name, layer in list(model.named_modules(remove_duplicate=False)):
            if getattr(layer, "unmasked", False):
                continue
            if "weight" in layer._parameters and kind_of(layer, "weight") == "mask":
                parent, _, child = name.rpartition(".")
                planted = self._layer(self.prefix + name, layer)
                setattr(model.get_submodule(parent), child, planted)

    def _layer(self, name: str, layer: nn.Module) -> nn.Module:
        if layer not in self.layers:
            if self.keep is None:
                planted: nn.Module = FrozenLinear(self._frozen(name, layer), layer.bias)
            elif isinstance(layer, nn.Embedding):
                masked = self._masked_weight(name, layer)
                planted = MaskedEmbedding(masked, layer.padding_idx)
            elif isinstance(layer, RobertaLMHead):
                planted = MaskedLMHead(self._masked_weight(name, layer), layer)
            else:
                planted = MaskedLinear(self._masked_weight(name, layer), layer.bias)
            self.layers[layer] = planted.train(layer.training)
        return self.layers[layer]

    def _masked_weight(self, name: str, layer: nn.Module) -> MaskedWeight:
        """The masked weight in place of a stock one; tied weights stay tied."""
        stock = layer.weight
        if stock not in self.masked:
            if not kept_count(stock.numel(), self.config.mask_keep):
                raise LotteryError(
                    f"--mask-keep {self.config.mask_keep} keeps none of the"
                    f" {stock.numel()} weights of {name}; give a larger fraction"
                )
            shape, keep = tuple(stock.shape), self.config.mask_keep
            frozen, signed = self._frozen(name, layer), self.config.signed
            scales = first_scales(shape, str(self.config.mask_scale))
            trained = self.start.get(f"{name}.weight")
            bound = score_bound(
                shape[1],
                str(self.config.mask_scores),
                embedding=isinstance(layer, nn.Embedding),
            )
            if _fits(trained, stock):
                scores = fit(
                    trained,
                    frozen.weight,
                    keep=keep,
                    scales=scales,
                    signed=signed,
                    bound=bound,
                )
            else:
                # In the memory of the stock weight, which is not needed any more.
                out = stock.detach()
                seed = self.config.mask_seed
                scores = draw_scores(seed, name, shape, bound=bound, out=out)
            self.masked[stock] = MaskedWeight(
                frozen,
                scores,
                keep=keep,
                scales=scales,
                anneal=self.anneal,
                signed=signed,
            )
        return self.masked[stock]

    def _frozen(self, name: str, layer: nn.Module) -> Frozen:
        role = role_of(name, self.config.mask_share)
        if role not in self.frozen:
            if name in self.imports:
                matrix = self.imports[name] * import_scale(self.config)
                self.frozen[role] = Frozen(matrix, imported=True)
            else:
                keep = 1.0 if self.keep is None else self.keep
                weight = random_weight(name, layer, self.config, keep=keep)
                self.frozen[role] = Frozen(weight)
        return self.frozen[role]
