"""Planting: turn a stock fairseq model into a masked one, in place.

Each parameter of the stock model is treated in one of three ways. Weights of linear
layers and embeddings become frozen and masked. Norms, biases, learned positions and the
classification head are trained densely if the configuration says so, and otherwise
fixed or masked. Any other parameter is an error.

Planting takes three passes over the model, because each needs the one before it to be
complete: ``leave_unmasked`` decides for all weights, tied ones together, which get no
mask; ``settle_dense`` gives norms, biases and positions their first values and makes
those fixed that are not trained; ``replace_layers`` then puts masked layers, which take
over the biases, in the place of stock ones.

Nothing here assumes an encoder and a decoder.
"""

from __future__ import annotations

import logging
import math
from dataclasses import replace
from typing import Any, Dict, Optional, Set

from fairseq.models.roberta import RobertaLMHead
from torch import Tensor, nn

from onelayer_lottery.compat import remove_fast_path
from onelayer_lottery.core.fitting import fit
from onelayer_lottery.core.frozen import uniform
from onelayer_lottery.core.mask import kept_count
from onelayer_lottery.core.methods import METHODS
from onelayer_lottery.core.modules import (
    Frozen,
    FrozenLinear,
    MaskedEmbedding,
    MaskedLinear,
    MaskedWeight,
    draw_scores,
    first_scales,
    score_bound,
)
from onelayer_lottery.errors import LotteryError
from onelayer_lottery.identity import signature_of
from onelayer_lottery.planting.config import MaskConfig
from onelayer_lottery.planting.contents import describe
from onelayer_lottery.planting.lm_head import MaskedLMHead
from onelayer_lottery.planting.reservoir_config import ReservoirConfig
from onelayer_lottery.planting.reservoir_layers import reservoir_layer, skip_backward
from onelayer_lottery.planting.roles import (
    group_of,
    import_scale,
    is_dense_head,
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
    """Turn a stock model into a masked one, in place; call it on a complete model.

    ``imports`` has matrices (symbols, dimension) that replace random ones, by the name
    of their embedding. ``start`` has the tensors of a trained model of the same shape,
    by name: everything learned starts as close to it as possible. ``max_update`` is the
    length of the training, for schedules. ``prefix`` is the name, with a dot, of a part
    that is added to a planted model later.
    """
    remove_fast_path(model)
    planter = _Planter(config, max_update, imports=imports, start=start)
    planter.leave_unmasked(model, prefix)
    planter.settle_dense(model, prefix, config)
    planter.replace_layers(model, prefix, masked=True)
    signature = signature_of(vars(config))
    logger.info("planted %s%s | %s", prefix, describe(model), signature)


def plant_reservoirs(
    model: nn.Module,
    config: ReservoirConfig,
    layers: Dict[str, bool],
    *,
    imports: Optional[Dict[str, Tensor]] = None,
    max_update: int = 0,
) -> None:
    """Turn the named layers of a stock model into reservoirs, in place; call it last.

    ``layers`` says whether each has masks. Everything else stays trainable; ``imports``
    has first values for embeddings.
    """
    remove_fast_path(model)
    for name, matrix in (imports or {}).items():
        model.get_submodule(name).weight.detach().copy_(matrix)
    planter = _Planter(config, max_update)
    untrained = replace(config, mask_train="none")
    for name, masked in layers.items():
        stack, _, index = name.rpartition(".")
        stock = model.get_submodule(name)
        layer = reservoir_layer(stock, str(config.reservoir_type))
        model.get_submodule(stack)[int(index)] = layer
        planter.settle_dense(layer, f"{name}.", config if masked else untrained)
        planter.replace_layers(layer, f"{name}.", masked=masked)
        if str(config.reservoir_backward) == "skip":
            skip_backward(layer)
    logger.info("planted %s | %s", describe(model), signature_of(vars(config)))


class _Planter:
    """The passes of planting; keeps shared what was tied or has one role.

    Each pass takes a module and the name of that module in the model, with a dot.
    """

    def __init__(
        self,
        config: MaskConfig,
        max_update: int,
        *,
        imports: Optional[Dict[str, Tensor]] = None,
        start: Optional[Dict[str, Tensor]] = None,
    ):
        self.config = config
        self.anneal = round(config.mask_anneal * max_update)
        self.imports = imports or {}
        self.start = start or {}
        self.unmasked: Set[nn.Module] = set()  # layers that stay stock layers
        self.frozen: Dict[str, Frozen] = {}  # by role
        self.masked: Dict[nn.Parameter, MaskedWeight] = {}  # by stock weight
        self.layers: Dict[nn.Module, nn.Module] = {}  # by stock layer

    def leave_unmasked(self, model: nn.Module, prefix: str) -> None:
        """Keep stock layers whose weight gets no mask, and set its first value."""
        values: Dict[nn.Parameter, nn.Parameter] = {}  # by stock weight
        for name, layer in list(model.named_modules(remove_duplicate=False)):
            if not _has_weight(layer):
                continue
            stock = layer.weight
            first = self._first_value(prefix + name, layer)
            if first is not None:
                values.setdefault(stock, first)
            if stock in values:
                layer.weight = values[stock]
                self.unmasked.add(layer)

    def settle_dense(self, model: nn.Module, prefix: str, config: MaskConfig) -> None:
        """Give norms, biases and positions a first value; fix those not trained.

        A fixed one becomes a buffer outside of the state dict, where no optimizer,
        average or checkpoint can change it. Imported positions stay in the state dict,
        because their file may be gone when the checkpoint is loaded.
        """
        for local, module in model.named_modules():
            layer = prefix + local
            for key, parameter in list(module.named_parameters(recurse=False)):
                group, name = group_of(module, key), f"{layer}.{key}"
                if group == "mask":
                    continue
                if group is None:
                    raise TypeError(
                        f"cannot plant {name}: a {type(module).__name__} is neither a"
                        " linear layer, an embedding nor a norm"
                    )
                set_first_value(
                    parameter,
                    group=group,
                    module=module,
                    name=name,
                    seed=config.mask_seed,
                )
                trained = group in config.trained or is_dense_head(layer, config)
                if trained and _fits(self.start.get(name), parameter):
                    parameter.detach().copy_(self.start[name])
                if layer in self.imports:
                    parameter.detach().copy_(self.imports[layer])
                    parameter.requires_grad_(trained)
                elif not trained:
                    del module._parameters[key]
                    module.register_buffer(key, parameter.detach(), persistent=False)

    def replace_layers(self, model: nn.Module, prefix: str, *, masked: bool) -> None:
        """Replace stock layers by masked ones, or by frozen ones without a mask."""
        for name, layer in list(model.named_modules(remove_duplicate=False)):
            if _has_weight(layer) and layer not in self.unmasked:
                parent, _, child = name.rpartition(".")
                planted = self._layer(prefix + name, layer, masked)
                setattr(model.get_submodule(parent), child, planted)

    def _first_value(self, name: str, layer: nn.Module) -> Optional[nn.Parameter]:
        """Return the first value of a weight without a mask, None for all others."""
        trained: Any = self.start.get(f"{name}.weight")
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

    def _layer(self, name: str, layer: nn.Module, masked: bool) -> nn.Module:
        if layer not in self.layers:
            if not masked:
                frozen = self._frozen(name, layer, keep=1.0)
                planted: nn.Module = FrozenLinear(frozen, layer.bias)
            elif isinstance(layer, nn.Embedding):
                weight = self._masked_weight(name, layer)
                planted = MaskedEmbedding(weight, layer.padding_idx)
            elif isinstance(layer, RobertaLMHead):
                planted = MaskedLMHead(self._masked_weight(name, layer), layer)
            else:
                planted = MaskedLinear(self._masked_weight(name, layer), layer.bias)
            self.layers[layer] = planted.train(layer.training)
        return self.layers[layer]

    def _masked_weight(self, name: str, layer: nn.Module) -> MaskedWeight:
        """Return the masked weight that replaces a stock one; ties are kept."""
        stock = layer.weight
        if stock not in self.masked:
            if not kept_count(stock.numel(), self.config.mask_keep):
                raise LotteryError(
                    f"--mask-keep {self.config.mask_keep} keeps none of the"
                    f" {stock.numel()} weights of {name}; give a larger fraction"
                )
            shape, keep = tuple(stock.shape), self.config.mask_keep
            method = str(self.config.mask_method)
            frozen = self._frozen(name, layer, keep=keep)
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
                    signed=METHODS[method].signed,
                    bound=bound,
                )
            else:
                # Reuse the memory of the stock weight, which is no longer needed.
                out = stock.detach()
                seed = self.config.mask_seed
                scores = draw_scores(seed, name, shape, bound=bound, out=out)
            self.masked[stock] = MaskedWeight(
                frozen,
                scores,
                keep=keep,
                scales=scales,
                anneal=self.anneal,
                method=method,
            )
        return self.masked[stock]

    def _frozen(self, name: str, layer: nn.Module, *, keep: float) -> Frozen:
        role = role_of(name, self.config.mask_share)
        if role not in self.frozen:
            if name in self.imports:
                matrix = self.imports[name] * import_scale(self.config)
                self.frozen[role] = Frozen(matrix, imported=True)
            else:
                weight = random_weight(name, layer, self.config, keep=keep)
                self.frozen[role] = Frozen(weight)
        return self.frozen[role]


def _has_weight(layer: nn.Module) -> bool:
    """Whether a stock layer has a weight that could be masked."""
    return "weight" in layer._parameters and group_of(layer, "weight") == "mask"


def _fits(trained: Optional[Tensor], stock: Tensor) -> bool:
    """Whether a trained tensor exists and fits; a head may be new or of other size."""
    return trained is not None and trained.shape == stock.shape
