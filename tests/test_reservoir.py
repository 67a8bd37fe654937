"""Reservoir layers: random, never updated, among layers that are trained."""

import copy
from argparse import Namespace

import numpy as np
import pytest
import torch
from fairseq.models import ARCH_MODEL_REGISTRY
from stock import batch, build, build_tiny, dictionary, translation_task
from test_convert import checkpoint_of, dictionaries_of, text_of, trained_model

from onelayer_lottery.compat import remove_fast_path
from onelayer_lottery.conversion.from_checkpoint import ticket_from_checkpoint
from onelayer_lottery.conversion.tasks import Dictionaries
from onelayer_lottery.conversion.to_checkpoint import (
    baked_checkpoint,
    checkpoint_from_ticket,
)
from onelayer_lottery.conversion.to_model import baked_model, working_model
from onelayer_lottery.core.frozen import frozen_weight
from onelayer_lottery.frozen.reservoirs import layers_text, reservoir_layers
from onelayer_lottery.planting.contents import frozen_tensors, masked_weights
from onelayer_lottery.planting.reservoir_config import (
    TYPES,
    ReservoirConfig,
)
from onelayer_lottery.planting.reservoir_problems import reservoir_problems
from onelayer_lottery.ticket.format import TicketError, read_ticket, write_ticket
from onelayer_lottery.ticket.inspection import format_inspection, inspect_ticket

ARCH = "transformer_reservoir_tiny"
DEPTHS = {"encoder": 6, "decoder": 3}
IN_DECODER = ("transformer", "ffn", "cnn")


def layers_for(kind: str) -> str:
    return "encoder:1" if kind == "bigru" else "encoder:1/decoder:1"


def reservoir(kind="transformer", task=None, **flags):
    flags.setdefault("reservoir_layers", layers_for(kind))
    return build_tiny(ARCH, task, reservoir_type=kind, **flags)


# Flags


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("alternating", {"encoder": [1, 3, 5], "decoder": [1]}),
        ("encoder:alternating", {"encoder": [1, 3, 5], "decoder": []}),
        ("decoder:2/encoder:4,0", {"encoder": [4, 0], "decoder": [2]}),
        ("none", {"encoder": [], "decoder": []}),
    ],
)
def test_layers_are_counted_from_zero(text, expected):
    assert reservoir_layers(text, DEPTHS) == expected


def test_the_same_layers_are_always_said_in_the_same_way():
    for text in ("alternating", "decoder:1/encoder:5,3,1"):
        assert layers_text(reservoir_layers(text, DEPTHS)) == "encoder:1,3,5/decoder:1"
    assert layers_text({"encoder": [], "decoder": []}) == "none"


def sentences(**flags):
    config = ReservoirConfig.from_namespace(Namespace(**flags))
    return reservoir_problems(config, Namespace(**flags), DEPTHS)


BAD = {
    "out of range": (
        {"reservoir_layers": "encoder:1,6"},
        "--reservoir-layers has encoder:6, but the encoder has 6 layers; they are"
        " counted from 0 to 5",
    ),
    "twice": (
        {"reservoir_layers": "encoder:1,1"},
        "--reservoir-layers has encoder:1 twice; name each layer once",
    ),
    "side twice": (
        {"reservoir_layers": "encoder:1/encoder:2"},
        "--reservoir-layers has encoder twice; give its layers in one list",
    ),
    "no number": (
        {"reservoir_layers": "encoder:-1"},
        "--reservoir-layers has '-1' for the encoder; give alternating, or numbers",
    ),
    "no side": (
        {"reservoir_layers": "1,3"},
        "--reservoir-layers has '1,3'; give alternating, none, or layers such as"
        " encoder:1,3/decoder:1,3",
    ),
    "unknown side": (
        {"reservoir_layers": "middle:1"},
        "--reservoir-layers has 'middle:1'; give alternating, none, or layers",
    ),
    "no layers": (
        {"reservoir_layers": "encoder:"},
        "--reservoir-layers has 'encoder:'; give alternating, none, or layers",
    ),
    "all layers": (
        {"reservoir_layers": "encoder:0,1,2,3,4,5/decoder:0,1,2"},
        "--reservoir-layers encoder:0,1,2,3,4,5/decoder:0,1,2 leaves no layer to be"
        " trained; leave some out",
    ),
    "decoder without attention": (
        {"reservoir_layers": "decoder:0,1,2", "reservoir_type": "ffn"},
        "--reservoir-layers decoder:0,1,2 leaves no decoder layer that attends to the"
        " encoder, as --reservoir-type ffn does not",
    ),
    "decoder without gradient": (
        {"reservoir_layers": "decoder:0,1,2", "reservoir_backward": "skip"},
        "--reservoir-layers decoder:0,1,2 leaves no decoder layer that passes a"
        " gradient to the encoder",
    ),
    "look ahead": (
        {"reservoir_type": "bigru"},
        "--reservoir-layers alternating has layers of the decoder, where"
        " --reservoir-type bigru would look ahead at words",
    ),
    "odd width": (
        {
            "reservoir_type": "bigru",
            "reservoir_layers": "encoder:1",
            "encoder_embed_dim": 15,
        },
        "--reservoir-type bigru has half of the width in each direction, and"
        " --encoder-embed-dim is 15; give an even number",
    ),
    "type": (
        {"reservoir_type": "rnn"},
        "--reservoir-type is rnn; give one of transformer, ffn, bigru, cnn",
    ),
    "backward": (
        {"reservoir_backward": "none"},
        "--reservoir-backward is none; give one of exact, skip",
    ),
    "masked cnn": (
        {"reservoir_type": "cnn", "reservoir_mask": "all"},
        "--reservoir-mask is for --reservoir-type transformer and ffn, not for cnn",
    ),
    "mask and skip": (
        {"reservoir_mask": "all", "reservoir_backward": "skip"},
        "--reservoir-mask with --reservoir-backward skip: masks are learned from the",
    ),
    "mask of a trained layer": (
        {"reservoir_mask": "encoder:2"},
        "--reservoir-mask has encoder:2, which is trained and not in",
    ),
    "mask of no layer": (
        {"reservoir_mask": "encoder:7"},
        "--reservoir-mask has encoder:7, but the encoder has 6 layers",
    ),
    "masks of some, shared": (
        {"reservoir_mask": "encoder:1", "mask_share": "layers"},
        "--reservoir-mask encoder:1 with --mask-share layers: frozen weights under a",
    ),
    "keep without mask": (
        {"mask_keep": 0.3, "mask_train": "norm"},
        "--mask-keep 0.3, --mask-train norm: there is no mask; add --reservoir-mask",
    ),
    "embeddings under masks": (
        {"reservoir_mask": "all", "mask_train": "embed"},
        "--mask-train embed: in a reservoir model embeddings, positions and heads are",
    ),
    "start": (
        {"mask_start": "dense.pt"},
        "--mask-start dense.pt: in a reservoir model embeddings and all other layers",
    ),
    "nothing to act on": (
        {"reservoir_layers": "none", "reservoir_type": "ffn"},
        "--reservoir-layers none: --reservoir-type, --reservoir-backward and"
        " --reservoir-mask have nothing to act on",
    ),
    "renumbered": (
        {"mask_share": "layers", "encoder_layers_to_keep": "0,2"},
        "--encoder-layers-to-keep renumbers the layers, which --reservoir-layers",
    ),
    "a flag of all models": ({"mask_seed": -1}, "--mask-seed is -1; give a whole"),
}


@pytest.mark.parametrize("case", BAD)
def test_a_bad_flag_is_named_with_what_to_do(case):
    flags, expected = BAD[case]
    (sentence,) = sentences(**flags)
    assert sentence.startswith(expected)


def test_a_shorthand_that_chooses_nothing_is_an_error():
    config = ReservoirConfig()
    (sentence,) = reservoir_problems(config, Namespace(), {"encoder": 1, "decoder": 1})
    assert sentence.startswith(
        "--reservoir-layers alternating chooses no layer (1 of the encoder, 1"
        " of the decoder); name some, or give none"
    )


def test_all_problems_are_reported_together():
    found = sentences(mask_gain=0.0, reservoir_layers="encoder:9", mask_keep=0.3)
    assert len(found) == 3
    with pytest.raises(SystemExit, match=r"mask-gain is 0.0(.|\n)*has encoder:9"):
        reservoir(mask_gain=0.0, reservoir_layers="encoder:9")


# Models


@pytest.mark.parametrize("shape", ["tiny", "small", "base", "deep"])
def test_every_shape_is_registered(shape):
    assert f"transformer_reservoir_{shape}" in ARCH_MODEL_REGISTRY


def test_frozen_weights_depend_on_seed_and_role_only():
    torch.manual_seed(1)
    layer = reservoir(mask_seed=5, mask_gain=0.5).encoder.layers[1]
    expected = frozen_weight(
        5, "encoder.layers.1.fc1", shape=(32, 16), init="xavier-uniform", gain=0.5
    )
    assert torch.equal(layer.fc1.weight, expected)
    gru = reservoir("bigru", mask_init="signed-constant").encoder.layers[1]
    expected = frozen_weight(
        1,
        "encoder.layers.1.hidden_backwards",
        shape=(24, 8),
        init="signed-constant",
    )
    assert torch.equal(gru.hidden_backwards.weight, expected)


def test_reservoirs_of_a_stack_can_share_one_frozen_layer():
    flags = {"encoder_layers": 4, "reservoir_layers": "encoder:1,3"}
    shared = reservoir(mask_share="layers", **flags).encoder.layers
    own = reservoir(**flags).encoder.layers
    assert shared[1].fc1.weight.data_ptr() == shared[3].fc1.weight.data_ptr()
    assert not torch.equal(own[1].fc1.weight, own[3].fc1.weight)


@pytest.mark.parametrize("kind", TYPES)
def test_all_but_the_reservoirs_is_the_stock_model_to_be_trained(kind):
    torch.manual_seed(3)
    model = reservoir(kind)
    torch.manual_seed(3)
    stock = build_tiny("transformer", share_decoder_input_output_embed=True)
    remove_fast_path(stock)
    ours = dict(model.named_parameters())
    names = [
        f"{part.replace(':', '.layers.')}." for part in layers_for(kind).split("/")
    ]
    theirs = {
        name: parameter
        for name, parameter in stock.named_parameters()
        if not name.startswith(tuple(names))
    }
    assert list(ours) == list(theirs)
    for name, parameter in ours.items():
        assert torch.equal(parameter, theirs[name])
        assert parameter.requires_grad
    assert not [n for n in model.state_dict() if n.startswith(tuple(names))]


def test_without_reservoirs_it_is_the_stock_model():
    model = reservoir(reservoir_layers="none").eval()
    flags = {"share_decoder_input_output_embed": True}
    stock = build_tiny("transformer", **flags).eval()
    remove_fast_path(stock)
    state = {k: v for k, v in model.state_dict().items() if k != "mask_version"}
    stock.load_state_dict(state)
    sample = batch()
    assert torch.equal(model(**sample)[0], stock(**sample)[0])


@pytest.mark.parametrize("backward", ["exact", "skip"])
@pytest.mark.parametrize("kind", TYPES)
def test_frozen_layers_are_bit_identical_after_training(kind, backward):
    model = reservoir(kind, reservoir_backward=backward, dropout=0.1)
    frozen = [tensor.clone() for tensor in frozen_tensors(model)]
    fixed = {n: b.clone() for n, b in model.named_buffers() if "layers.1" in n}
    first = {name: p.detach().clone() for name, p in model.named_parameters()}
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, weight_decay=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        model(**batch())[0].log_softmax(-1).square().mean().backward()
        optimizer.step()
    assert frozen
    for before, after in zip(frozen, frozen_tensors(model)):
        assert torch.equal(before, after)
    buffers = dict(model.named_buffers())
    assert any(name.endswith("norm.weight") for name in fixed)
    assert all(torch.equal(buffers[name], fixed[name]) for name in fixed)
    for name, parameter in model.named_parameters():
        assert not torch.equal(parameter, first[name]), name


@pytest.mark.parametrize("backward", ["exact", "skip"])
@pytest.mark.parametrize("kind", TYPES)
def test_gradients_reach_all_that_is_trained_below_a_reservoir(kind, backward):
    model = reservoir(kind, reservoir_backward=backward)
    model(**batch())[0].log_softmax(-1).square().mean().backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.abs().sum() > 0, name


@pytest.mark.parametrize("kind", TYPES)
def test_skip_passes_the_gradient_by_and_keeps_nothing_for_it(kind):
    exact, skip = (
        reservoir(kind, reservoir_backward=backward).encoder.layers[1]
        for backward in ("exact", "skip")
    )
    x = torch.randn(5, 2, 16, requires_grad=True)
    saved = []
    with torch.autograd.graph.saved_tensors_hooks(saved.append, lambda t: t):
        y = skip(x, encoder_padding_mask=None)
    assert not saved
    assert torch.equal(y, exact(x, encoder_padding_mask=None))
    upstream = torch.randn_like(y)
    assert torch.equal(torch.autograd.grad(y, x, upstream)[0], upstream)
    through = torch.autograd.grad(exact(x, encoder_padding_mask=None), x, upstream)[0]
    assert not torch.allclose(through, upstream)


def test_skip_works_with_activation_checkpointing():
    flags = {"checkpoint_activations": True}
    model = reservoir(reservoir_backward="skip", **flags)
    plain = reservoir(reservoir_backward="skip")
    plain.load_state_dict(model.state_dict())
    for either in (model, plain):
        either(**batch())[0].log_softmax(-1).square().mean().backward()
    for (name, ours), theirs in zip(model.named_parameters(), plain.parameters()):
        torch.testing.assert_close(ours.grad, theirs.grad, msg=name)


ORDERS = {
    "post-norm": {},
    "pre-norm": {"encoder_normalize_before": True, "decoder_normalize_before": True},
}


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("backward", ["exact", "skip"])
@pytest.mark.parametrize("kind", IN_DECODER)
def test_teacher_forcing_equals_incremental_decoding(kind, backward, order):
    model = reservoir(kind, reservoir_backward=backward, **ORDERS[order]).eval()
    sample = batch()
    with torch.no_grad():
        forced, _ = model(**sample)
        encoded = model.encoder(sample["src_tokens"], sample["src_lengths"])
        state = {}
        for step in range(1, 8):
            prefix = sample["prev_output_tokens"][:, :step]
            out, _ = model.decoder(prefix, encoded, incremental_state=state)
            torch.testing.assert_close(
                out[:, -1], forced[:, step - 1], atol=2e-5, rtol=0
            )


@pytest.mark.parametrize("kind", IN_DECODER)
def test_incremental_decoding_follows_the_beams(kind):
    model = reservoir(kind).eval()
    sample = batch()
    tokens, order = sample["prev_output_tokens"], torch.tensor([2, 0, 0])
    source = sample["src_tokens"][:1].expand(3, -1)  # three beams of one sentence
    with torch.no_grad():
        encoded = model.encoder(source, sample["src_lengths"][:1].expand(3))
        state = {}
        for step in range(1, 5):
            model.decoder(tokens[:, :step], encoded, incremental_state=state)
        model.decoder.reorder_incremental_state_scripting(state, order)
        tokens = torch.cat([tokens[order, :4], tokens[:, 4:]], 1)
        forced, _ = model.decoder(tokens, encoded)
        for step in (5, 6, 7):
            out, _ = model.decoder(tokens[:, :step], encoded, incremental_state=state)
            torch.testing.assert_close(
                out[:, -1], forced[:, step - 1], atol=2e-5, rtol=0
            )


@pytest.mark.parametrize("kind", TYPES)
def test_padding_on_either_side_changes_nothing(kind):
    layer = reservoir(kind).eval().encoder.layers[1]
    x = torch.randn(5, 1, 16)
    alone = layer(x, encoder_padding_mask=None)
    for place in (slice(0, 5), slice(3, 8)):
        padded = torch.randn(8, 1, 16)
        padded[place] = x
        padding = torch.ones(1, 8, dtype=torch.bool)
        padding[0, place] = False
        found = layer(padded, encoder_padding_mask=padding)[place]
        torch.testing.assert_close(found, alone, atol=2e-6, rtol=0)


@pytest.mark.parametrize("kind", ["bigru", "cnn"])
def test_recurrences_and_convolutions_see_both_neighbours_in_the_encoder(kind):
    layer = reservoir(kind).eval().encoder.layers[1]
    x = torch.randn(5, 1, 16)
    for neighbour in (1, 3):
        changed = x.clone()
        changed[neighbour] += 1
        assert not torch.equal(layer(changed)[2], layer(x)[2])


@pytest.mark.parametrize("kind", ["transformer", "ffn"])
def test_masked_reservoirs_learn_masks_among_trained_layers(kind):
    model = reservoir(kind, reservoir_mask="all", mask_keep=0.3, mask_train="norm")
    model(**batch())[0].log_softmax(-1).square().mean().backward()
    masked = dict(masked_weights(model))
    assert masked
    for name, weight in masked.items():
        assert ".layers.1." in name
        assert int(weight.mask().sum()) == round(0.3 * weight.scores.numel())
        assert weight.scores.grad.abs().sum() > 0, name
    trained = dict(model.named_parameters())
    assert "encoder.layers.1.final_layer_norm.weight" in trained
    assert "encoder.layers.0.fc1.weight" in trained
    assert "encoder.layers.1.fc1.bias" not in trained


def test_trained_masked_and_frozen_layers_mix():
    model = reservoir(reservoir_mask="decoder:1", mask_keep=0.3, mask_train="norm")
    names = [name for name, _ in masked_weights(model)]
    assert names
    assert all(name.startswith("decoder.layers.1.") for name in names)
    plain = reservoir().encoder.layers[1].fc1.weight
    assert torch.equal(model.encoder.layers[1].fc1.weight, plain)
    trained = dict(model.named_parameters())
    assert "decoder.layers.1.final_layer_norm.weight" in trained
    assert "decoder.layers.0.fc1.weight" in trained
    assert not [name for name in trained if name.startswith("encoder.layers.1.")]


@pytest.mark.parametrize("kind", TYPES)
def test_copies_and_half_precision_keep_the_layers(kind):
    model = reservoir(kind, reservoir_backward="skip").eval()
    sample = batch()
    twin = copy.deepcopy(model)
    assert torch.equal(twin(**sample)[0], model(**sample)[0])
    half = twin.to(torch.bfloat16)
    assert all(tensor.dtype == torch.bfloat16 for tensor in frozen_tensors(half))
    assert half(**sample)[0].isfinite().all()


def test_embeddings_can_be_imported_as_first_values(tmp_path):
    task = translation_task()
    matrix = torch.arange(40 * 16.0).view(40, 16)
    lines = [
        " ".join([symbol, *map(str, row.tolist())])
        for symbol, row in zip(task.source_dictionary.symbols, matrix)
    ]
    path = tmp_path / "vectors.txt"
    path.write_text("\n".join(["40 16", *lines]) + "\n", encoding="utf-8")
    model = reservoir(task=task, encoder_embed_path=str(path))
    weight = model.encoder.embed_tokens.weight
    assert weight.requires_grad
    assert torch.equal(weight[4:], matrix[4:])


# Checkpoints and tickets


def test_a_checkpoint_of_all_trained_layers_is_refused():
    stock = build_tiny("transformer", share_decoder_input_output_embed=True)
    with pytest.raises(SystemExit, match="it is not of a reservoir model: its layers"):
        reservoir().load_state_dict(stock.state_dict())


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (
            {"reservoir_layers": "encoder:0"},
            "it was trained with --reservoir-layers encoder:0 .*this model has"
            " --reservoir-layers encoder:1/decoder:1",
        ),
        ({"mask_seed": 2}, "it was trained with --mask-seed 2 .*has --mask-seed 1"),
        ({"kind": "ffn"}, "trained with --reservoir-type ffn .*type transformer"),
        (
            {"reservoir_mask": "all"},
            "with .*--reservoir-mask encoder:1/decoder:1 .*has .*--reservoir-mask none",
        ),
    ],
)
def test_a_checkpoint_of_other_reservoirs_is_refused(flags, message):
    with pytest.raises(SystemExit, match=message):
        reservoir().load_state_dict(reservoir(**flags).state_dict())


def test_a_masked_model_does_not_load_a_reservoir():
    model = build_tiny(mask_share="none", mask_init="xavier-uniform")
    with pytest.raises(
        SystemExit, match=r"it was trained with .*--reservoir-layers enc"
    ):
        model.load_state_dict(reservoir(reservoir_mask="all").state_dict())


def test_the_backward_pass_may_change_from_one_training_to_the_next():
    first, second = reservoir(), reservoir(reservoir_backward="skip")
    second.load_state_dict(first.state_dict())


VARIANTS = {
    "transformer": {},
    "shorthand": {"reservoir_layers": "alternating", "reservoir_backward": "skip"},
    "masked": {
        **{"reservoir_mask": "all", "mask_keep": 0.3, "mask_train": "norm,bias"},
        **{"mask_scale": "row", "mask_share": "layers"},
    },
    "masked in part": {"reservoir_mask": "decoder:1", "mask_train": "norm"},
    "pre-norm, shared embeddings": {
        **{"share_all_embeddings": True, "encoder_learned_pos": True},
        **{"encoder_normalize_before": True, "decoder_normalize_before": True},
    },
    "untied": {"share_decoder_input_output_embed": False, "mask_gain": 0.5},
    "ffn": {"reservoir_type": "ffn"},
    "masked ffn": {
        **{"reservoir_type": "ffn", "reservoir_mask": "all", "mask_train": "norm"},
    },
    "bigru": {"reservoir_type": "bigru", "reservoir_layers": "encoder:0"},
    "cnn": {"reservoir_type": "cnn"},
}


@pytest.fixture(params=VARIANTS)
def case(request, tmp_path):
    flags = VARIANTS[request.param]
    joined = flags.get("share_all_embeddings", False)
    task = translation_task(40, 40 if joined else 30, joined=joined)
    model = trained_model(task, arch=ARCH, **flags)
    ticket = ticket_from_checkpoint(
        checkpoint_of(model), dictionaries=dictionaries_of(task)
    )
    write_ticket(ticket, tmp_path / "model.ticket")
    return model, read_ticket(tmp_path / "model.ticket"), task, flags


def same(ours, theirs) -> bool:
    sample = batch()
    with torch.no_grad():
        return torch.equal(ours(**sample)[0], theirs(**sample)[0])


def test_a_ticket_holds_what_was_trained_and_gives_the_same_model(case):
    model, ticket, task, flags = case
    trained = {
        name: parameter
        for name, parameter in model.named_parameters()
        if not name.endswith("scores")
    }
    assert set(ticket.dense) == set(trained)
    assert len(ticket.masks) == len(list(masked_weights(model)))
    restored = build_tiny(ARCH, task, **flags)
    restored.load_state_dict(checkpoint_from_ticket(ticket)["model"])
    assert same(model, restored.eval())
    assert same(model, working_model(ticket)[0])


def test_transformer_reservoirs_are_baked_and_the_others_say_why_not(case):
    model, ticket, task, flags = case
    kind = flags.get("reservoir_type", "transformer")
    if kind != "transformer":
        lacking = {"ffn": "has attention", "bigru": "recurrent", "cnn": "convolution"}
        with pytest.raises(
            TicketError,
            match=f"type {kind} cannot be baked: stock fairseq's transformer has no"
            rf" such layer \(.*{lacking[kind]}",
        ):
            baked_checkpoint(ticket, dtype=torch.float32)
        return
    baked, _ = baked_model(ticket)
    assert type(baked).__module__.startswith("fairseq.")
    assert same(model, baked)
    state = baked_checkpoint(ticket, dtype=torch.float32)
    assert state["cfg"]["model"]["arch"] == "transformer"
    plain = {k: v for k, v in flags.items() if not k.startswith(("mask", "reservoir"))}
    plain.setdefault("share_decoder_input_output_embed", True)
    stock = build_tiny("transformer", task, **plain)
    stock.load_state_dict(state["model"], strict=True)


def test_a_ticket_can_be_inspected(case):
    model, ticket, _, flags = case
    report = inspect_ticket(ticket)
    assert report["totals"]["masks"] == len(ticket.masks)
    text = format_inspection(report)
    assert f"type:{flags.get('reservoir_type', 'transformer')}|" in text
    assert f"reservoir layers:{model.mask_config.reservoir_layers}|" in text
    assert (f"{len(ticket.masks)} masks keep" if ticket.masks else "no masks; ") in text


def ticket_of(**flags):
    task = translation_task()
    model = trained_model(task, arch=ARCH, **flags)
    state = checkpoint_of(model)
    return ticket_from_checkpoint(state, dictionaries=dictionaries_of(task))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda t: t.config.update({"frozen-sha256": "0" * 64}),
            "contradicts itself: .*frozen-sha256 0000",
        ),
        (
            lambda t: t.dense.pop("encoder.layers.0.fc1.weight"),
            "the ticket has no mask or weight for encoder.layers.0.fc1",
        ),
        (
            lambda t: t.dense.update({"encoder.layers.1.fc1.weight": np.zeros(3)}),
            "the ticket has encoder.layers.1.fc1.weight, which its model does not",
        ),
        (
            lambda t: t.config["model"].update(reservoir_layers="encoder:7"),
            "contradicts itself: --reservoir-layers has encoder:7, but",
        ),
    ],
)
@pytest.mark.parametrize("kind", ["transformer", "cnn"])
def test_a_ticket_that_contradicts_itself_is_refused(kind, change, message):
    ticket = ticket_of(reservoir_type=kind)
    change(ticket)
    with pytest.raises(TicketError, match=message):
        working_model(ticket)


def test_masks_are_those_of_the_reservoirs():
    inside, outside = (f"encoder.layers.{n}.fc1" for n in (1, 0))
    ticket = ticket_of(reservoir_mask="all")
    ticket.masks[outside] = ticket.masks[inside]
    with pytest.raises(TicketError, match=f"a mask for {outside}, its model does not"):
        working_model(ticket)
    ticket = ticket_of(reservoir_mask="all")
    del ticket.masks[inside]
    with pytest.raises(TicketError, match=f"the ticket has no mask for {inside}"):
        working_model(ticket)


def test_a_trained_value_that_is_missing_is_not_made_up():
    ticket = ticket_of()
    del ticket.dense["encoder.layers.0.fc1.bias"]
    with pytest.raises(
        TicketError, match=r"has nothing for encoder\.layers\.0\.fc1\.bi"
    ):
        working_model(ticket)


@pytest.mark.slow
def test_a_deep_model_leaves_half_of_its_layers_out_of_the_checkpoint():
    task = translation_task()
    dense = build("transformer_reservoir_deep", task, reservoir_layers="none")
    half = build("transformer_reservoir_deep", task)
    assert half.arguments.reservoir_layers.startswith("encoder:1,3,5,7,9,11/decoder:1,")
    count = [sum(p.numel() for p in m.parameters()) for m in (dense, half)]
    layers = 12 * (4 * 512 * 513 + 512 * 1024 * 2 + 1024 + 512 + 4 * 512)
    layers += 12 * (8 * 512 * 513 + 512 * 1024 * 2 + 1024 + 512 + 6 * 512)
    assert count[0] - count[1] == layers // 2


# Sentence encoders

SENTENCES = {
    **{"encoder_embed_dim": 16, "encoder_ffn_embed_dim": 32, "encoder_layers": 3},
    **{"encoder_attention_heads": 2, "max_positions": 20, "dropout": 0.0},
    **{"attention_dropout": 0.0, "activation_dropout": 0.0, "pooler_dropout": 0.0},
}
HEAD = "sentence_classification_head"


def sentence_encoder(symbols, **flags):
    task = Namespace(source_dictionary=symbols, dictionary=symbols)
    model = build("roberta_reservoir_tiny", task, **{**SENTENCES, **flags})
    model.register_classification_head(HEAD, num_classes=3)
    return model


def masked_dictionary():
    symbols = dictionary(40)
    symbols.add_symbol("<mask>")
    return symbols


def classes(model):
    tokens = torch.arange(4, 16).view(2, 6)
    tokens[1, 4:] = 1
    return model(tokens, features_only=True, classification_head_name=HEAD)[0]


@pytest.mark.parametrize("backward", ["exact", "skip"])
@pytest.mark.parametrize("kind", TYPES)
def test_a_sentence_encoder_has_reservoirs(kind, backward):
    model = sentence_encoder(
        masked_dictionary(), reservoir_type=kind, reservoir_backward=backward
    )
    assert model.arguments.reservoir_layers == "encoder:1"
    assert not [name for name in model.state_dict() if ".layers.1." in name]
    classes(model).square().mean().backward()
    for name, parameter in model.named_parameters():
        if "lm_head" not in name:  # which classes do not need
            assert parameter.grad.abs().sum() > 0, name
    assert f"classification_heads.{HEAD}.dense.weight" in dict(model.named_parameters())


def test_a_sentence_encoder_has_no_decoder():
    with pytest.raises(SystemExit, match=r"has 'decoder:1'; .* such as encoder:1,3$"):
        sentence_encoder(masked_dictionary(), reservoir_layers="decoder:1")


@pytest.mark.parametrize("kind", ["transformer", "bigru"])
def test_a_ticket_of_a_sentence_encoder_gives_the_same_model(kind):
    symbols = masked_dictionary()
    model = sentence_encoder(symbols, reservoir_type=kind).eval()
    task = Namespace(_name="sentence_prediction", data="", num_classes=3)
    state = {"cfg": {"model": model.arguments, "task": task}}
    labels = "a 1\nb 1\nc 1\n"
    texts = {"source": text_of(dictionary(40)), "label": labels}
    ticket = ticket_from_checkpoint(
        {**state, "model": model.state_dict()}, dictionaries=Dictionaries(texts, {})
    )
    assert f"classification_heads.{HEAD}.out_proj.bias" in ticket.dense
    found, _ = working_model(ticket)
    assert type(found).__module__.startswith("fairseq.") == (kind == "transformer")
    assert torch.equal(classes(found), classes(model))
