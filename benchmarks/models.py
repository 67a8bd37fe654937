"""The models that are compared, in fairseq's own trainer, without a corpus.

dense   the stock Transformer
ours    the masked one of the same shape
sort    ours, but each mask is found by a stable full sort in every forward pass
exact   the stock one, every second layer a reservoir, the gradient through it
skip    the same, the gradient past it
"""

from __future__ import annotations

import gc
import warnings
from typing import Any, Dict, List, NamedTuple, Sequence, Tuple

import torch
from fairseq import options
from fairseq.data import Dictionary
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from fairseq.tasks.translation import TranslationTask
from fairseq.trainer import Trainer
from torch import Tensor, nn

from onelayer_lottery.core.mask import kept_count, straight_through
from onelayer_lottery.core.modules import MaskedWeight
from onelayer_lottery.models.shapes import Shape
from onelayer_lottery.models.transformer import SHAPES

# Number of symbols, source and target: IWSLT14's, and WMT14's as assumed.
VOCABULARIES = {
    **dict.fromkeys(("small", "wide", "deep"), (8848, 6632)),
    **dict.fromkeys(("base", "wider", "deeper"), (41000, 41000)),
}
KINDS = ("dense", "ours", "sort")
RESERVOIRS = ("exact", "skip")
RESERVOIR_ARCH = "transformer_reservoir_small"
LENGTH = 32  # symbols of every sentence, on either side


class Size(NamedTuple):
    """The shape of a model and of its dictionaries."""

    shape: Shape
    vocabulary: Tuple[int, int]  # source, target


def named_size(name: str) -> Size:
    return Size(SHAPES[name], VOCABULARIES[name])


def dictionary(size: int) -> Dictionary:
    symbols = Dictionary()
    for number in range(size - len(symbols)):
        symbols.add_symbol(f"piece{number}@@")
    return symbols


def text(symbols: Dictionary) -> str:
    """A dictionary as in its file."""
    lines = zip(symbols.symbols, symbols.count)
    return "".join(f"{s} {n}\n" for s, n in list(lines)[symbols.nspecial :])


def build_trainer(
    kind: str, size: Size, *, flags: Sequence[str] = ("--cpu",)
) -> Trainer:
    """fairseq's trainer with a new model of this kind, as fairseq-train builds it."""
    return trainer_of(configuration(kind, size, flags), kind, size)


def trainer_of(config: Any, kind: str, size: Size) -> Trainer:
    gc.collect()  # a trainer before it is garbage that refers to itself
    task = TranslationTask(config.task, *map(dictionary, size.vocabulary))
    torch.manual_seed(1)
    model = task.build_model(config.model)
    if kind == "sort":
        sort_fully(model)
    trainer = Trainer(config, task, model, task.build_criterion(config.criterion))
    trainer.begin_epoch(1)
    return trainer


def configuration(kind: str, size: Size, flags: Sequence[str]) -> Any:
    """The configuration of docs/training.md's training, at its highest rate."""
    shape = size.shape
    masked = kind in ("ours", "sort")
    words = ["no-data", *flags, "--source-lang", "de", "--target-lang", "en"]
    archs = {"dense": "transformer", **dict.fromkeys(RESERVOIRS, RESERVOIR_ARCH)}
    words += ["--arch", archs.get(kind, "transformer_onelayer_random_small")]
    words += ["--reservoir-backward", kind] if kind in RESERVOIRS else []
    words += ["--share-decoder-input-output-embed", "--dropout", "0.3"]
    for side in ("encoder", "decoder"):
        words += [f"--{side}-embed-dim", str(shape.width)]
        words += [f"--{side}-ffn-embed-dim", str(shape.ffn)]
        words += [f"--{side}-attention-heads", str(shape.heads)]
        words += [f"--{side}-layers", str(shape.layers)]
    words += ["--mask-gain", "0.5"] if masked else []
    words += ["--optimizer", "adam", "--adam-betas", "(0.9, 0.98)", "--lr", "5e-4"]
    words += ["--lr-scheduler", "fixed", "--clip-norm", "0.5"]
    words += ["--criterion", "label_smoothed_cross_entropy", "--label-smoothing", "0.1"]
    words += ["--required-batch-size-multiple", "1"]
    parser = options.get_training_parser()
    with warnings.catch_warnings():  # fairseq's way of calling hydra is deprecated
        warnings.simplefilter("ignore")
        return convert_namespace_to_omegaconf(
            options.parse_args_and_arch(parser, words)
        )


def batch(tokens: int, size: Size, *, seed: int = 0) -> Dict[str, Any]:
    """A batch of random sentences, with so many symbols on either side."""
    generator = torch.Generator().manual_seed(seed)
    sentences = tokens // LENGTH

    def side(symbols: int) -> Tensor:
        special = 4
        drawn = torch.randint(
            special, symbols, (sentences, LENGTH), generator=generator
        )
        drawn[:, -1] = 2  # end of sentence
        return drawn

    source, target = map(side, size.vocabulary)
    return {
        "id": torch.arange(sentences),
        "nsentences": sentences,
        "ntokens": tokens,
        "net_input": {
            "src_tokens": source,
            "src_lengths": torch.full((sentences,), LENGTH),
            "prev_output_tokens": target.roll(1, dims=1),
        },
        "target": target,
    }


def sort_fully(model: nn.Module) -> None:
    """Let every mask of a model be found anew by a full sort in each forward pass."""
    weights: List[_SortedWeight] = []
    for module in model.modules():
        if isinstance(module, MaskedWeight):
            module.__class__ = _SortedWeight
            module.sorted = None
            weights.append(module)

    def forget(*_: Any) -> None:
        for weight in weights:
            weight.sorted = None

    model.register_forward_pre_hook(forget)


class _SortedWeight(MaskedWeight):
    def forward(self) -> Tensor:
        if self.sorted is None:  # a tied weight is sorted once for its two uses
            frozen = self.frozen.weight
            magnitude = self.scores.detach().abs().flatten()
            order = magnitude.sort(stable=True, descending=True).indices
            mask = torch.zeros_like(magnitude)
            mask[order[: kept_count(mask.numel(), self.keep)]] = 1
            product = frozen * mask.view_as(frozen)
            self.sorted = straight_through(self.scores, frozen, product)
        return self.sorted
