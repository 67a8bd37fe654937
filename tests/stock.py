"""Stock fairseq models of any size, without data: for tests of planting."""

from argparse import Namespace
from types import SimpleNamespace

import torch
from fairseq.data import Dictionary
from fairseq.models import ARCH_CONFIG_REGISTRY, ARCH_MODEL_REGISTRY

import onelayer_lottery  # noqa: F401  registers the architectures

TINY = {
    "encoder_embed_dim": 16,
    "encoder_ffn_embed_dim": 32,
    "encoder_attention_heads": 2,
    "encoder_layers": 2,
    "decoder_embed_dim": 16,
    "decoder_ffn_embed_dim": 32,
    "decoder_attention_heads": 2,
    "decoder_layers": 3,
    "dropout": 0.0,
}


def dictionary(size: int) -> Dictionary:
    symbols = Dictionary()
    for number in range(size - len(symbols)):
        symbols.add_symbol(f"w{number}")
    assert len(symbols) == size
    return symbols


def translation_task(source: int = 40, target: int = 30, *, joined: bool = False):
    src_dict = dictionary(source)
    tgt_dict = src_dict if joined else dictionary(target)
    return SimpleNamespace(
        source_dictionary=src_dict,
        target_dictionary=tgt_dict,
        src_dict=src_dict,
        tgt_dict=tgt_dict,
    )


def build(arch: str = "transformer_onelayer_random_tiny", task=None, **flags):
    """Build a model as fairseq does from the command line; TINY unless sized."""
    args = Namespace(arch=arch, **flags)
    ARCH_CONFIG_REGISTRY[arch](args)
    model = ARCH_MODEL_REGISTRY[arch].build_model(args, task or translation_task())
    model.arguments = args  # as fairseq puts them into a checkpoint
    return model


def build_tiny(arch: str = "transformer_onelayer_random_tiny", task=None, **flags):
    return build(arch, task, **{**TINY, **flags})


def batch(sentences: int = 3, source: int = 40, target: int = 30, length: int = 7):
    """Random tokens (sentences, length), the last sentence padded."""
    generator = torch.Generator().manual_seed(0)

    def tokens(symbols: int) -> torch.Tensor:
        return torch.randint(4, symbols, (sentences, length), generator=generator)

    src, prev = tokens(source), tokens(target)
    src[-1, -2:] = 1
    prev[:, 0] = 2
    return {
        "src_tokens": src,
        "src_lengths": src.ne(1).sum(1),
        "prev_output_tokens": prev,
    }


def sentence_task(symbols: int = 40, *, longest: int = 16):
    """As far as a model of sentence pairs or masked words asks for its task."""
    words = dictionary(symbols - 1)
    words.add_symbol("<mask>")
    return SimpleNamespace(
        source_dictionary=words,
        target_dictionary=words,
        max_positions=lambda: longest,
    )


def build_roberta(
    arch: str = "roberta_onelayer_random_tiny", task=None, *, classes: int = 3, **flags
):
    """Build a tiny RoBERTa and register its head, as fairseq's task does."""
    sized = {key: value for key, value in TINY.items() if not key.startswith("decoder")}
    positions = {"max_positions": 16, "attention_dropout": 0.0}
    model = build(arch, task or sentence_task(), **{**sized, **positions, **flags})
    if classes:
        model.register_classification_head("sentence", num_classes=classes)
    return model
