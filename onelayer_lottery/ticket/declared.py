"""Compare the weights that flags declare with those in a file, before building a model.

Flags of a few bytes can ask for a model of any size. A file holds a mask or a tensor
for every weight, so this check limits the model to what the file holds.
"""

from __future__ import annotations

from argparse import Namespace
from math import prod
from typing import Container, Dict, Iterator, Sequence, Tuple

from onelayer_lottery.errors import LotteryError

Shape = Tuple[int, ...]

# Reservoirs come from the seed: allow so many times the weights of the file.
_MOST_DRAWN = 64


def check_declared(
    held: Dict[str, Shape],
    weights: Iterator[Tuple[str, Shape]],
    *,
    file: str,
    drawn: Container[str] = (),
) -> None:
    """Refuse a file that does not hold the ``weights`` that its flags declare.

    ``held`` has the shapes of the weights in the file, by layer. The layers ``drawn``
    come from the seed and are not in the file.
    """
    room = _MOST_DRAWN * sum(map(prod, held.values()))
    for name, shape in weights:
        if layer_of(name) in drawn:
            room -= prod(shape)
            if room < 0:
                raise LotteryError(
                    f"{file} declares reservoirs of more than {_MOST_DRAWN} times"
                    " the weights that it holds"
                )
        elif name not in held:
            raise LotteryError(f"{file} has no mask or weight for {name}")
        elif held[name] != shape:
            raise LotteryError(
                f"{file}'s mask of {name} has the shape {held[name]}, its"
                f" architecture and dictionaries ask for {shape}"
            )


def declared_weights(
    flags: Namespace, sides: Sequence[str], *, source: int, target: int
) -> Iterator[Tuple[str, Shape]]:
    """Yield the weights of a model with these sides: an encoder, a decoder, or both."""
    if "decoder" not in sides:
        return roberta_weights(flags, source=source)
    if "encoder" not in sides:
        return language_model_weights(flags, symbols=target)
    return transformer_weights(flags, source=source, target=target)


def transformer_weights(
    flags: Namespace, *, source: int, target: int
) -> Iterator[Tuple[str, Shape]]:
    """Yield the weights (out, in) of fairseq's Transformer by name, tied ones once."""
    encoder, decoder = flags.encoder_embed_dim, flags.decoder_embed_dim
    yield "encoder.embed_tokens", (source, encoder)
    yield from _layers(flags, "encoder", "encoder", encoder)
    if not flags.share_all_embeddings:
        yield "decoder.embed_tokens", (target, decoder)
    cross = None if flags.no_cross_attention else encoder
    yield from _layers(flags, "decoder", "decoder", decoder, cross=cross)
    if flags.decoder_output_dim != decoder:
        yield "decoder.project_out_dim", (flags.decoder_output_dim, decoder)
    if not (flags.share_decoder_input_output_embed or flags.share_all_embeddings):
        yield "decoder.output_projection", (target, flags.decoder_output_dim)


def language_model_weights(
    flags: Namespace, *, symbols: int
) -> Iterator[Tuple[str, Shape]]:
    """Yield the weights of fairseq's Transformer language model by name."""
    width, inputs = flags.decoder_embed_dim, flags.decoder_input_dim
    outputs = flags.decoder_output_dim
    yield "decoder.embed_tokens", (symbols, inputs)
    if inputs != width:
        yield "decoder.project_in_dim", (width, inputs)
    yield from _layers(flags, "decoder", "decoder", width)
    if outputs != width:
        yield "decoder.project_out_dim", (outputs, width)
    if not flags.share_decoder_input_output_embed:
        yield "decoder.output_projection", (symbols, outputs)


def roberta_weights(flags: Namespace, *, source: int) -> Iterator[Tuple[str, Shape]]:
    """Yield the weights of fairseq's RoBERTa, without classification heads."""
    width, stack = flags.encoder_embed_dim, "encoder.sentence_encoder"
    yield f"{stack}.embed_tokens", (source, width)
    yield from _layers(flags, "encoder", stack, width)
    yield "encoder.lm_head.dense", (width, width)
    if flags.untie_weights_roberta:
        yield "encoder.lm_head", (source, width)


def _layers(
    flags: Namespace, side: str, stack: str, width: int, *, cross: int | None = None
) -> Iterator[Tuple[str, Shape]]:
    kept = getattr(flags, f"{side}_layers_to_keep", None)
    depth = len(kept.split(",")) if kept else getattr(flags, f"{side}_layers")
    inner = getattr(flags, f"{side}_ffn_embed_dim")
    for index in range(depth):
        layer = f"{stack}.layers.{index}"
        for attention, inputs in (("self_attn", width), ("encoder_attn", cross)):
            if inputs is not None:
                yield f"{layer}.{attention}.q_proj", (width, width)
                yield f"{layer}.{attention}.k_proj", (width, inputs)
                yield f"{layer}.{attention}.v_proj", (width, inputs)
                yield f"{layer}.{attention}.out_proj", (width, width)
        yield f"{layer}.fc1", (inner, width)
        yield f"{layer}.fc2", (width, inner)


def layer_of(name: str) -> str:
    """Return the layer of a weight: encoder.layers.3 of encoder.layers.3.fc1."""
    stack, inside, rest = name.partition(".layers.")
    return f"{stack}.layers.{rest.partition('.')[0]}" if inside else name
