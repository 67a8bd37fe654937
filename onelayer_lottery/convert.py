"""Checkpoint to ticket, and ticket to checkpoint: a masked or a stock one."""

from __future__ import annotations

import math
from argparse import ArgumentParser, Namespace
from collections import OrderedDict, defaultdict
from io import StringIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Dict, Iterator, List, NamedTuple, Optional, Tuple

import torch
from fairseq.data import Dictionary
from fairseq.data.data_utils import infer_language_pair
from fairseq.dataclass.configs import DatasetConfig, GenerationConfig
from fairseq.models import ARCH_CONFIG_REGISTRY, ARCH_MODEL_REGISTRY
from omegaconf import OmegaConf
from torch import Tensor, nn

from onelayer_lottery.checkpoint import Checkpoint
from onelayer_lottery.compat import fast_path_names
from onelayer_lottery.config import MaskConfig
from onelayer_lottery.errors import LotteryError
from onelayer_lottery.frozen import STREAM_VERSION, digest, frozen_weight
from onelayer_lottery.mask import top_k_mask
from onelayer_lottery.models.planted import IDENTITY_KEY, encode_identity
from onelayer_lottery.modules import IMPORTED
from onelayer_lottery.planting import gain_of, kind_of, role_of, set_first_value
from onelayer_lottery.ticket import (
    Bpe,
    FrozenTensor,
    MaskedTensor,
    Ticket,
    TicketError,
)

_SCORES = ".masked.scores"
_FROZEN = f".masked.frozen.{IMPORTED}"
_PATHS = ("encoder_embed_path", "decoder_embed_path")
_TASK_FLAGS = (
    "source_lang",
    "target_lang",
    "left_pad_source",
    "left_pad_target",
    "max_source_positions",
    "max_target_positions",
)


def ticket_from_checkpoint(
    state: Checkpoint,
    *,
    dictionaries: Optional[Dictionaries] = None,
    bpe: Optional[Bpe] = None,
    embeddings: torch.dtype = torch.float32,
) -> Ticket:
    """Take from a checkpoint of a masked model what makes a ticket: seed and bits.

    Without dictionaries it can be looked at, but not turned into a model. The values of
    imported embeddings that are kept are stored as ``embeddings``.
    """
    check_masked(state)
    arguments = _arguments(state, "model")
    config = MaskConfig.from_namespace(arguments)
    ticket = Ticket(
        seed=config.mask_seed,
        init=str(config.mask_init),
        fan=str(config.mask_fan),
        keep=config.mask_keep,
        stream=STREAM_VERSION,
        frozen={},
        masks={},
        tied={},
        dense={},
        config=_configuration(arguments, _arguments(state, "task")),
        dictionaries={},
        bpe=bpe,
    )
    if dictionaries:
        ticket.config["task"].update(
            source_lang=dictionaries.source_lang, target_lang=dictionaries.target_lang
        )
        texts = {"source": dictionaries.source, "target": dictionaries.target}
        ticket.dictionaries.update(texts)
        _check_sizes(dictionaries, state["model"])
    padding = Dictionary().pad()
    for tensor_name, tensor in state["model"].items():
        name = tensor_name[: -len(_SCORES)]
        if not tensor_name.endswith(_SCORES):
            layer = tensor_name.rpartition(".")[0]
            if _is_trained(tensor_name) and not _tied_to(layer, arguments):
                width = embeddings if "embed_tokens" in tensor_name else torch.float32
                ticket.dense[tensor_name] = tensor.to(width).numpy()
            continue
        tied = _tied_to(name, arguments)
        if tied:
            ticket.tied[name] = tied
            continue
        role = role_of(name, str(config.mask_share))
        mask = top_k_mask(tensor, config.mask_keep)
        imported = state["model"].get(f"{name}{_FROZEN}")
        if imported is not None:
            values = imported.float()[mask].to(embeddings).numpy()
            ticket.frozen[role] = FrozenTensor(
                tuple(tensor.shape), 1.0, None, digest(imported.float()), values
            )
        elif role not in ticket.frozen:
            ticket.frozen[role] = _frozen_tensor(
                name, tuple(tensor.shape), role=role, config=config, padding=padding
            )
        ticket.masks[name] = MaskedTensor(role, mask.numpy())
    return ticket


def check_masked(state: Checkpoint) -> None:
    """Refuse a checkpoint that has no masks."""
    if IDENTITY_KEY not in state["model"]:
        raise LotteryError(
            "it has no masks: it is a checkpoint of a dense model, which cannot become"
            " a ticket; train one of the transformer_onelayer_random architectures"
        )


def _check_sizes(dictionaries: Dictionaries, tensors: Dict[str, Tensor]) -> None:
    for side, language, text in (
        ("encoder", dictionaries.source_lang, dictionaries.source),
        ("decoder", dictionaries.target_lang, dictionaries.target),
    ):
        for key in (_SCORES, ".weight"):
            matrix = tensors.get(f"{side}.embed_tokens{key}")
            symbols = len(_dictionary(text))
            if matrix is not None and len(matrix) != symbols:
                raise LotteryError(
                    f"the dictionary of {language} has {symbols} symbols, the {side}"
                    f" {len(matrix)} embeddings; give the folder of the dictionaries"
                    " that it was trained with as --data DIR"
                )


def checkpoint_from_ticket(ticket: Ticket) -> Checkpoint:
    """Turn a ticket into a checkpoint for ``--user-dir onelayer_lottery``.

    The scores of a ticket are gone; those put in their place choose the same masks,
    with a margin around the threshold from which training could go on.
    """
    model, _ = _stock_model(ticket)
    tensors = dict(model.named_buffers())
    config = MaskConfig.from_namespace(Namespace(**ticket.config["model"]))
    tensors[IDENTITY_KEY] = encode_identity(config)
    for name, other in _first_names(model).items():
        if other in ticket.dense:
            tensors[name] = torch.from_numpy(ticket.dense[other])
    for name, masked in ticket.masks.items():
        if ticket.frozen[masked.role].values is not None:
            tensors[name + _FROZEN] = _imported(ticket, masked.role)
        bound = 1 / math.sqrt(masked.mask.shape[1])
        scores = torch.from_numpy(masked.mask).half().add_(0.5).mul_(bound / 2)
        tensors[name + _SCORES] = scores
    for name, other in ticket.tied.items():
        for part in (_SCORES, _FROZEN):
            if other + part in tensors:
                tensors[name + part] = tensors[other + part]
    return _checkpoint(ticket, tensors, arch=ticket.config["arch"])


def baked_checkpoint(ticket: Ticket, *, dtype: torch.dtype) -> Checkpoint:
    """Turn a ticket into a checkpoint that stock fairseq loads without this package."""
    model, _ = baked_model(ticket)
    aside = fast_path_names(model)
    tensors = {
        name: tensor.to(dtype) if tensor.is_floating_point() else tensor
        for name, tensor in model.state_dict().items()
        if name not in aside
    }
    for name, other in ticket.tied.items():
        tensors[f"{name}.weight"] = tensors[f"{other}.weight"]
    return _checkpoint(ticket, tensors, arch=_model_class(ticket).stock_arch)


@torch.no_grad()
def baked_model(ticket: Ticket) -> Tuple[nn.Module, Any]:
    """The stock model that computes what the ticket's masked model does, and its task.

    It holds the effective weights and nothing else: each frozen tensor is drawn again,
    checked against its digest, masked into its layers, and let go.
    """
    model, task = _stock_model(ticket)
    layers_of: Dict[str, List[str]] = defaultdict(list)
    for name, masked in ticket.masks.items():
        layers_of[masked.role].append(name)
    for role, frozen in effective_frozen(ticket):
        for name in layers_of[role]:
            mask = torch.from_numpy(ticket.masks[name].mask)
            torch.mul(frozen, mask, out=_weight(model, name, ticket))
    aside, first = fast_path_names(model), _first_names(model)
    for name, other in ticket.tied.items():
        if first.get(f"{name}.weight") != first.get(f"{other}.weight", ""):
            raise TicketError(f"the ticket ties {name} to {other}, its model does not")
    unknown = set(ticket.dense) - set(first)
    if unknown:
        raise TicketError(f"the ticket has {min(unknown)}, which its model does not")
    for layer, module in model.named_modules():
        for key, parameter in module.named_parameters(recurse=False):
            name = f"{layer}.{key}"
            kind = kind_of(module, key)
            if first[name] in ticket.dense:
                value = torch.from_numpy(ticket.dense[first[name]])
                if value.shape != parameter.shape:
                    raise TicketError(
                        f"the ticket's {name} has the shape {tuple(value.shape)}, its"
                        f" architecture asks for {tuple(parameter.shape)}"
                    )
                parameter.copy_(value)
            elif kind == "mask" and layer not in {**ticket.masks, **ticket.tied}:
                raise TicketError(f"the ticket has no mask for {layer}")
            elif kind in ("norm", "bias", "positions"):
                set_first_value(
                    parameter, kind=kind, module=module, name=name, seed=ticket.seed
                )
            elif kind is None and name not in aside:
                raise TicketError(f"the ticket has nothing for {name}")
    return model.requires_grad_(False).eval(), task


def effective_frozen(ticket: Ticket) -> Iterator[Tuple[str, Tensor]]:
    """Draw each frozen tensor again, by role, and check that its bits are the same."""
    if ticket.stream != STREAM_VERSION:
        raise TicketError(
            f"the ticket's frozen weights are of stream {ticket.stream}, this version"
            f" draws stream {STREAM_VERSION}; use the version that wrote it"
        )
    for role, frozen in ticket.frozen.items():
        if frozen.values is not None:
            yield role, _imported(ticket, role)
            continue
        weight = frozen_weight(
            ticket.seed,
            role,
            shape=frozen.shape,
            init=ticket.init,
            keep=ticket.keep,
            fan=ticket.fan,
            gain=frozen.gain,
        )
        if frozen.padding is not None:
            weight[frozen.padding] = 0
        if digest(weight) != frozen.digest:
            raise TicketError(
                f"the frozen weights of {role} drawn here differ from the ticket's"
            )
        yield role, weight


class Dictionaries(NamedTuple):
    """Both dictionaries of a translation model as text, and their languages."""

    source_lang: str
    target_lang: str
    source: str
    target: str


def _imported(ticket: Ticket, role: str) -> Tensor:
    """The imported tensor of a role; where the mask keeps nothing it is zero."""
    frozen = ticket.frozen[role]
    (mask,) = (m.mask for m in ticket.masks.values() if m.role == role)
    weight = torch.zeros(frozen.shape)
    weight[torch.from_numpy(mask)] = torch.from_numpy(frozen.values).float()
    return weight


def find_dictionaries(
    state: Checkpoint, *, beside: Path, given: Optional[Path] = None
) -> Dictionaries:
    """Read the dictionaries that a checkpoint was trained with.

    They are looked for in the folder that is given, or else beside the checkpoint and
    where the training data were. The languages are those of the checkpoint, or if it
    does not say, of the binarised data in the folder.
    """
    task = _arguments(state, "task")
    data = str(getattr(task, "data", "")).split(":")[0]
    folders = [given] if given else [beside, *([Path(data)] if data else [])]
    known = (getattr(task, "source_lang", None), getattr(task, "target_lang", None))
    for folder in filter(Path.is_dir, folders):
        languages = known if all(known) else infer_language_pair(str(folder))
        paths = [folder / f"dict.{language}.txt" for language in languages]
        if all(path.is_file() for path in paths):
            texts = [path.read_text(encoding="utf-8") for path in paths]
            return Dictionaries(*languages, *texts)
    names = " and ".join(f"dict.{lang or 'LANGUAGE'}.txt" for lang in known)
    places = ", ".join(str(folder) for folder in folders)
    raise LotteryError(f"found no {names} in {places}; give their folder as --data DIR")


def _arguments(state: Checkpoint, part: str) -> Namespace:
    """The arguments of a part of a checkpoint's configuration, whatever its form."""
    found = (state.get("cfg") or {}).get(part) or state.get("args")
    if found is None:
        raise LotteryError("it holds no configuration: it is not of fairseq's trainer")
    return found if isinstance(found, Namespace) else Namespace(**found)


def _configuration(model: Namespace, task: Namespace) -> Dict[str, Any]:
    """What is needed to build the model again: no path, nothing of the training."""
    arch = getattr(model, "arch", None) or getattr(model, "_name", None)
    if arch not in ARCH_MODEL_REGISTRY:
        raise LotteryError(f"its architecture {arch} is not known to this version")
    parser = ArgumentParser()
    ARCH_MODEL_REGISTRY[arch].add_args(parser)
    flags = {
        name: getattr(model, name)
        for name in vars(parser.parse_args([]))
        if hasattr(model, name)
    }
    # Imported embeddings are in the ticket: that there was a file matters, not where.
    for name in _PATHS:
        if flags.get(name):
            flags[name] = "imported"
    flags.update(embed_dict="", trust_checkpoint=False)
    flags["embeddings_inside"] = getattr(model, "embeddings_inside", False)
    return {
        "arch": arch,
        "model": {name: _plain(value) for name, value in flags.items()},
        "task": {n: _plain(getattr(task, n)) for n in _TASK_FLAGS if hasattr(task, n)},
    }


def _plain(value: Any) -> Any:
    if value is None or isinstance(value, (bool, int, float)):
        return value
    return (
        [_plain(v) for v in value] if isinstance(value, (list, tuple)) else str(value)
    )


def _stock_model(ticket: Ticket) -> Tuple[nn.Module, Any]:
    """The stock model of a ticket's shape, whatever its weights."""
    task = SimpleNamespace(
        source_dictionary=_dictionary(ticket.dictionaries["source"]),
        target_dictionary=_dictionary(ticket.dictionaries["target"]),
    )
    arch = _model_class(ticket).stock_arch
    flags = {**ticket.config["model"], **dict.fromkeys(_PATHS)}
    arguments = Namespace(arch=arch, **flags)
    ARCH_CONFIG_REGISTRY[arch](arguments)
    return ARCH_MODEL_REGISTRY[arch].build_model(arguments, task), task


def _first_names(model: nn.Module) -> Dict[str, str]:
    """Each parameter's name, tied ones included, with the first name of it."""
    first: Dict[int, str] = {}
    names = {}
    for layer, module in model.named_modules(remove_duplicate=False):
        for key, parameter in module.named_parameters(recurse=False):
            name = f"{layer}.{key}"
            names[name] = first.setdefault(id(parameter), name)
    return names


def _model_class(ticket: Ticket):
    arch = ticket.config.get("arch")
    model_class = ARCH_MODEL_REGISTRY.get(arch)
    if not hasattr(model_class, "stock_arch"):
        raise TicketError(f"the ticket's architecture {arch} is not known here")
    return model_class


def _weight(model: nn.Module, name: str, ticket: Ticket) -> Tensor:
    try:
        weight = model.get_submodule(name).weight
    except AttributeError:
        raise TicketError(
            f"the ticket has a mask for {name}, which its architecture"
            f" {ticket.config['arch']} does not have"
        ) from None
    shape = tuple(ticket.masks[name].mask.shape)
    if tuple(weight.shape) != shape:
        raise TicketError(
            f"the ticket's mask of {name} has the shape {shape}, its architecture and"
            f" dictionaries ask for {tuple(weight.shape)}"
        )
    return weight.data


def _checkpoint(ticket: Ticket, tensors: Dict[str, Tensor], *, arch: str) -> Checkpoint:
    """A checkpoint that torch's safety check lets pass without this package."""
    task = {"data": "", **ticket.config["task"]}
    model = {**task, **ticket.config["model"], "arch": arch, "task": "translation"}
    if arch != ticket.config["arch"]:
        model.update(dict.fromkeys(_PATHS))  # stock fairseq would read the files
    return {
        "args": None,
        "cfg": {
            "model": _attributes(_name=arch, **model),
            "task": {"_name": "translation", **task},
            "criterion": {"_name": "label_smoothed_cross_entropy"},
            # What fairseq's Python interface reads of a checkpoint.
            "generation": _defaults(GenerationConfig),
            "dataset": {**_defaults(DatasetConfig), "required_batch_size_multiple": 1},
            "tokenizer": None,
            "bpe": None,
        },
        "model": tensors,
        "optimizer_history": [
            {
                "criterion_name": "LabelSmoothedCrossEntropyCriterion",
                "optimizer_name": "none",
                "num_updates": 0,
                "lr_scheduler_state": {"best": None},
            }
        ],
        "extra_state": {
            "epoch": 1,
            "train_iterator": {"epoch": 1, "iterations_in_epoch": 0},
        },
    }


def _defaults(section: type) -> Dict[str, Any]:
    values = OmegaConf.to_container(OmegaConf.structured(section()), enum_to_str=True)
    return {
        name: value
        for name, value in values.items()
        if not (isinstance(value, str) and "${" in value)
    }


def _attributes(**values: Any) -> OrderedDict:
    """Values to be read as attributes, for tools that expect a namespace.

    A namespace would not pass torch's safety check; an ordered dictionary does, and
    its attributes with it.
    """
    both = OrderedDict(values)
    both.__dict__.update(values)
    return both


def _frozen_tensor(
    name: str, shape: Tuple[int, int], *, role: str, config: MaskConfig, padding: int
) -> FrozenTensor:
    gain = gain_of(name, config)
    weight = frozen_weight(
        config.mask_seed,
        role,
        shape=shape,
        init=str(config.mask_init),
        keep=config.mask_keep,
        fan=str(config.mask_fan),
        gain=gain,
    )
    row = padding if name.endswith("embed_tokens") else None
    if row is not None:
        weight[row] = 0
    return FrozenTensor(shape, gain, row, digest(weight))


def _is_trained(name: str) -> bool:
    return name.rpartition(".")[2] in ("weight", "bias")


def _tied_to(name: str, arguments: Namespace) -> Optional[str]:
    """The layer whose weight a layer uses under another name, by fairseq's flags."""
    if getattr(arguments, "share_all_embeddings", False):
        followers = ("decoder.embed_tokens", "decoder.output_projection")
        return "encoder.embed_tokens" if name in followers else None
    if getattr(arguments, "share_decoder_input_output_embed", False):
        return "decoder.embed_tokens" if name == "decoder.output_projection" else None
    return None


def _dictionary(text: str) -> Dictionary:
    symbols = Dictionary()
    symbols.add_from_file(StringIO(text))
    return symbols
