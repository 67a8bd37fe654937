"""Valid files of every type that the package reads, as small as they can be."""

from __future__ import annotations

import io
import json
import os
import tempfile
from argparse import Namespace
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Dict, Iterator, List, Optional, Tuple

import numpy as np
import sentencepiece
import torch
from fairseq.data import Dictionary
from fairseq.data.encoders.gpt2_bpe_utils import bytes_to_unicode
from fairseq.models import ARCH_CONFIG_REGISTRY, ARCH_MODEL_REGISTRY
from safetensors.numpy import save as save_safetensors

from fuzz.saving import saved
from onelayer_lottery.conversion.from_checkpoint import ticket_from_checkpoint
from onelayer_lottery.conversion.tasks import Dictionaries, translation_dictionaries
from onelayer_lottery.ticket.format import write_ticket
from onelayer_lottery.ticket.model import Bpe, Moses, TextSteps

WORDS = "der die das hund katze schläft läuft sieht ein kleiner großer im park".split()
SYMBOLS = 30
WIDTH = 8

_ENCODER = {
    "encoder_embed_dim": WIDTH,
    "encoder_ffn_embed_dim": 16,
    "encoder_attention_heads": 2,
    "encoder_layers": 1,
    "dropout": 0.0,
}
_SIZES = {
    **_ENCODER,
    "decoder_embed_dim": WIDTH,
    "decoder_ffn_embed_dim": 16,
    "decoder_attention_heads": 2,
    "decoder_layers": 1,
    "max_source_positions": 32,
    "max_target_positions": 32,
}
_MASKED = "transformer_onelayer_random_tiny"
_RESERVOIR = "transformer_reservoir_tiny"
_TWO_LAYERS = {"encoder_layers": 2, "decoder_layers": 2}
_TRANSLATION: Dict[str, Tuple[str, Dict[str, Any]]] = {
    "plain": (_MASKED, {}),
    "one-layer": (_MASKED, _TWO_LAYERS),
    "multi-layer": (_MASKED, {**_TWO_LAYERS, "mask_share": "none", "mask_keep": 0.3}),
    "sparse": (_MASKED, {"mask_keep": 0.1, "encoder_ffn_embed_dim": 128}),
    "signed": (_MASKED, {"mask_method": "signed", "mask_keep": 0.6}),
    "scales": (_MASKED, {"mask_scale": "row-column"}),
    "trained": (
        _MASKED,
        {
            "mask_train": "norm,bias,positions",
            "encoder_learned_pos": True,
            "decoder_learned_pos": True,
        },
    ),
    "shared": (_MASKED, {"share_all_embeddings": True}),
    "untied": (_MASKED, {"share_decoder_input_output_embed": False}),
    "imported": (_MASKED, {"encoder_embed_path": "vectors.txt"}),
    **{
        f"reservoir-{kind}": (
            _RESERVOIR,
            {**_TWO_LAYERS, "reservoir_type": kind, "reservoir_layers": layers},
        )
        for kind, layers in {
            "transformer": "encoder:1/decoder:1",
            "ffn": "encoder:1/decoder:1",
            "cnn": "encoder:1/decoder:1",
            "bigru": "encoder:1",
        }.items()
    },
    "reservoir-masked": (_RESERVOIR, {**_TWO_LAYERS, "reservoir_mask": "all"}),
}
_GRID = """\
title: Two lines
figure: 2
corpus: small
data: data
gpus: 1
seeds: [1, 2]
base:
  arch: transformer_onelayer_random_tiny
  optimizer: adam
  lr: 2e-3
  criterion: label_smoothed_cross_entropy
  max-tokens: 100
variants:
  dense:
    arch: transformer
    seeds: 1
  one-layer:
    label: one layer
    table1: iwslt/small
    mask-keep: [0.5, 0.9]
  imported:
    seeds: 3
    encoder-embed-path: ${dense}
generate:
  beam: 2
average: 2
"""


@dataclass(frozen=True)
class Seed:
    """A valid input: the file that is changed, and the files beside it."""

    name: str
    format: str  # ticket, checkpoint, vectors, grid or results
    target: str  # name of the file that is changed
    files: Dict[str, bytes]
    task: str = "translation"
    state: Optional[Dict[str, Any]] = None  # of a checkpoint


def make_corpus() -> Dict[str, List[Seed]]:
    """All seeds by format; the same on every call."""
    torch.manual_seed(1)
    corpus: Dict[str, List[Seed]] = {}
    with tempfile.TemporaryDirectory() as folder:
        before = Path.cwd()
        os.chdir(folder)
        try:
            for seed in (*_model_seeds(), *_vector_seeds(), *_sweep_seeds()):
                corpus.setdefault(seed.format, []).append(seed)
        finally:
            os.chdir(before)
    return corpus


@lru_cache(maxsize=None)
def subword_models() -> Dict[str, bytes]:
    """A subword model of each kind, as a ticket has it."""
    letters = [*bytes_to_unicode().values(), "he"]
    encoder = json.dumps({letter: n for n, letter in enumerate(letters)})
    trained = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter([" ".join(WORDS)] * 20),
        model_writer=trained,
        vocab_size=40,
        model_type="bpe",
        normalization_rule_name="identity",
        num_threads=1,
        minloglevel=2,
    )
    return {
        "sentencepiece": trained.getvalue(),
        "fastbpe": b"h u 12\nn d</w> 9\ne r</w> 5\n",
        "subword_nmt": b"#version: 0.2\nh u\nn d</w>\ne r</w>\n",
        "gpt2": encoder.encode() + b"\0" + b"#version: 0.2\nh e\n",
    }


def _model_seeds() -> Iterator[Seed]:
    Path("vectors.txt").write_bytes(_text_vectors())
    task = _task()
    for name, (arch, flags) in _TRANSLATION.items():
        state = _translation_state(arch, task, flags)
        texts = translation_dictionaries(
            "de", "en", *[_text(task.source_dictionary)] * 2
        )
        yield from _checkpoint_seeds(name, state, _beside(texts))
        yield _ticket_seed(name, state, texts)
        if name == "imported":
            yield _ticket_seed("half", state, texts, embeddings=torch.float16)
        if name == "plain":
            steps = TextSteps(Moses("de", "en", dashes=False), lower=True)
            yield _ticket_seed("text", state, texts, text=steps)
            for kind, content in subword_models().items():
                yield _ticket_seed(kind, state, texts, bpe=Bpe(kind, content))
    dense = _translation_state("transformer", task, {})
    yield from _checkpoint_seeds("dense", dense, _beside(texts))
    yield from _language_model_seeds()
    for name, classes, flags in (
        ("sentence_prediction", 3, {"mask_train": "norm,bias,head"}),
        ("sentence_prediction", 1, {"untie_weights_roberta": True}),
        ("masked_lm", 0, {}),
    ):
        yield from _roberta_seeds(name, classes, flags)


def _roberta_seeds(name: str, classes: int, flags: Dict[str, Any]) -> Iterator[Seed]:
    task = _task()
    texts = {"source": _text(task.source_dictionary)}
    task.source_dictionary.add_symbol("<mask>")
    flags = {**_ENCODER, "max_positions": 32, "attention_dropout": 0.0, **flags}
    model, arguments = _build("roberta_onelayer_random_tiny", task, flags)
    settings: Dict[str, Any] = {"_name": name, "data": ""}
    if classes:
        model.register_classification_head("sentence", num_classes=classes)
        settings.update(
            num_classes=classes,
            init_token=0,
            separator_token=2,
            max_positions=32,
            classification_head_name="sentence",
            regression_target=classes == 1,
        )
    else:
        settings.update(tokens_per_sample=32, mask_prob=0.15)
    beside = {"dict.txt": texts["source"].encode()}
    if classes:
        beside = {"input0/dict.txt": texts["source"].encode()}
    if classes > 1:
        texts["label"] = "no 5\nyes 4\nmaybe 3\n"
        beside["label/dict.txt"] = texts["label"].encode()
    state = _state(model, arguments, settings)
    label = f"{name}-{classes}"
    yield from _checkpoint_seeds(label, state, beside, task=name)
    yield _ticket_seed(label, state, Dictionaries(texts, {}), task=name)
    if classes > 1:
        bpe = Bpe("gpt2", subword_models()["gpt2"])
        yield _ticket_seed(
            f"{label}-gpt2", state, Dictionaries(texts, {}), task=name, bpe=bpe
        )


def _language_model_seeds() -> Iterator[Seed]:
    task = _task()
    texts = Dictionaries({"source": _text(task.source_dictionary)}, {})
    beside = {"dict.txt": texts.texts["source"].encode()}
    sizes = {k: v for k, v in _SIZES.items() if k.startswith(("decoder", "dropout"))}
    for name, arch, breaks, flags in (
        ("onelayer", "transformer_lm_onelayer_random_tiny", "none", {}),
        ("random", "transformer_lm_random_tiny", "eos", {"decoder_learned_pos": True}),
        *(
            (
                f"reservoir-{kind}",
                "transformer_lm_reservoir_tiny",
                "complete",
                {"decoder_layers": 2, "reservoir_type": kind},
            )
            for kind in ("transformer", "cnn")
        ),
    ):
        settings = {"tokens_per_sample": 16, "sample_break_mode": breaks}
        model, arguments = _build(arch, task, {**sizes, **settings, **flags})
        settings.update(_name="language_modeling", data="", max_target_positions=32)
        state = _state(model, arguments, settings)
        label = f"language-model-{name}"
        kind = "language_modeling"
        yield from _checkpoint_seeds(label, state, beside, task=kind)
        yield _ticket_seed(label, state, texts, task=kind)


def _translation_state(
    arch: str, task: SimpleNamespace, flags: Dict[str, Any]
) -> Dict[str, Any]:
    model, arguments = _build(arch, task, {**_SIZES, **flags})
    settings = {"data": "", "source_lang": "de", "target_lang": "en"}
    settings.update(left_pad_source=True, max_source_positions=32)
    return _state(model, arguments, settings)


def _build(arch: str, task: SimpleNamespace, flags: Dict[str, Any]):
    arguments = Namespace(arch=arch, **flags)
    ARCH_CONFIG_REGISTRY[arch](arguments)
    model = ARCH_MODEL_REGISTRY[arch].build_model(arguments, task)
    return model.eval(), arguments


def _state(model: Any, arguments: Namespace, task: Dict[str, Any]) -> Dict[str, Any]:
    """A checkpoint as fairseq's trainer writes it, NumPy's types included."""
    return {
        "args": None,
        "cfg": {"model": arguments, "task": Namespace(**task), "criterion": None},
        "model": {n: t.clone() for n, t in model.state_dict().items()},
        "optimizer_history": [{"optimizer_name": "FairseqAdam", "num_updates": 4}],
        "extra_state": {
            "train_iterator": {"epoch": 2},
            "best": np.float64(3.5),
            "metrics": [("loss", np.arange(3))],
        },
    }


def _checkpoint_seeds(
    name: str,
    state: Dict[str, Any],
    beside: Dict[str, bytes],
    task: str = "translation",
) -> Iterator[Seed]:
    """As fairseq writes them since 0.10.2, and in the form of older versions."""
    parts = state["cfg"]
    merged = Namespace(**{**vars(parts["model"]), **vars(parts["task"])})
    old = {**state, "args": merged, "cfg": None}
    for form, content in (("zip", state), ("legacy", old)):
        files = {"model.checkpoint": saved(content, zipped=form == "zip"), **beside}
        yield Seed(
            f"{name}-{form}", "checkpoint", "model.checkpoint", files, task, content
        )


def _ticket_seed(
    name: str,
    state: Dict[str, Any],
    texts: Dictionaries,
    *,
    task: str = "translation",
    bpe: Optional[Bpe] = None,
    embeddings: torch.dtype = torch.float32,
    text: Optional[TextSteps] = None,
) -> Seed:
    ticket = ticket_from_checkpoint(
        state, dictionaries=texts, bpe=bpe, embeddings=embeddings
    )
    ticket.text = text
    write_ticket(ticket, "model.ticket", force=True)
    content = Path("model.ticket").read_bytes()
    return Seed(name, "ticket", "model.ticket", {"model.ticket": content}, task)


def _task() -> SimpleNamespace:
    symbols = Dictionary()
    for word in [*WORDS, *(f"w{n}" for n in range(SYMBOLS))][: SYMBOLS - len(symbols)]:
        symbols.add_symbol(word)
    return SimpleNamespace(
        source_dictionary=symbols,
        target_dictionary=symbols,
        max_positions=lambda: 32,
    )


def _text(symbols: Dictionary) -> str:
    file = io.StringIO()
    symbols.save(file)
    return file.getvalue()


def _beside(texts: Dictionaries) -> Dict[str, bytes]:
    sides = {"dict.de.txt": "source", "dict.en.txt": "target"}
    return {name: texts.texts[side].encode() for name, side in sides.items()}


def _matrix() -> np.ndarray:
    values = np.random.RandomState(1).standard_normal((SYMBOLS, WIDTH))
    return values.astype(np.float32)


def _text_vectors() -> bytes:
    symbols = _task().source_dictionary.symbols
    rows = (f"{s} {' '.join(map(str, row))}\n" for s, row in zip(symbols, _matrix()))
    return f"{SYMBOLS} {WIDTH}\n{''.join(rows)}".encode()


def _vector_seeds() -> Iterator[Seed]:
    dictionary = {"dict.txt": _text(_task().source_dictionary).encode()}
    yield Seed("text", "vectors", "vectors.txt", {"vectors.txt": _text_vectors()})
    for dtype in ("float16", "float32", "float64"):
        content = save_safetensors({"matrix": _matrix().astype(dtype)})
        files = {"vectors.safetensors": content, **dictionary}
        yield Seed(dtype, "vectors", "vectors.safetensors", files)


def _sweep_seeds() -> Iterator[Seed]:
    data = {f"data/dict.{lang}.txt": b"der 3\n" for lang in ("de", "en")}
    data.update({f"data/train.de-en.{lang}.idx": b"" for lang in ("de", "en")})
    yield Seed("grid", "grid", "grid.yaml", {"grid.yaml": _GRID.encode(), **data})
    plan, lines = _plan_and_results()
    files = {
        "swept/plans/figure2.json": json.dumps(plan).encode(),
        "swept/results.jsonl": "".join(json.dumps(x) + "\n" for x in lines).encode(),
    }
    yield Seed("results", "results", "swept/results.jsonl", files)
    yield Seed("plan", "results", "swept/plans/figure2.json", files)


def _plan_and_results() -> Tuple[Dict[str, Any], List[Dict[str, Any]]]:
    runs, lines = [], []
    for variant, keep in (("dense", None), ("one-layer", 0.5)):
        for seed in (1, 2):
            id = f"{variant}{seed}"
            runs.append({"id": id, "variant": variant, "seed": seed, "keep": keep})
            dense = keep is None
            lines.append(
                {
                    **{"id": id, "status": "finished", "seed": seed, "bleu": 20 + seed},
                    "bleu_signature": "nrefs:1|tok:13a",
                    "bytes": {"fp32": 4000, "int8": 1000}
                    if dense
                    else {"ticket": 900, "ticket_without_dictionaries": 800},
                    "weights": {"values": 1000} if dense else {"params": 500},
                    "curve": [{"epoch": 1, "update": 100, "nll_loss": 6.0}],
                    "flips": [] if dense else [{"update": 100, "rate": 0.01}],
                    "versions": {
                        "python": "3.11",
                        "torch": "2.13.0",
                        "fairseq": "0.12",
                    },
                    "device": "cpu",
                }
            )
    variants = [
        {"name": "dense", "label": "dense", "table1": "iwslt/dense"},
        {"name": "one-layer", "label": "one layer", "table1": "iwslt/small"},
    ]
    plan = {"name": "figure2", "title": "Layers", "figure": 2, "corpus": "small"}
    return {**plan, "variants": variants, "runs": runs}, lines
