"""Checkpoint, ticket, restored and baked model: one and the same, to the bit."""

import copy
from argparse import Namespace
from io import StringIO

import numpy as np
import pytest
import torch
from stock import TINY, batch, build_tiny, translation_task

from onelayer_lottery.compat import fast_path_names
from onelayer_lottery.conversion.from_checkpoint import ticket_from_checkpoint
from onelayer_lottery.conversion.tasks import (
    Dictionaries,
    find_dictionaries,
    translation_dictionaries,
)
from onelayer_lottery.conversion.to_checkpoint import (
    baked_checkpoint,
    checkpoint_from_ticket,
)
from onelayer_lottery.conversion.to_model import baked_model
from onelayer_lottery.errors import LotteryError
from onelayer_lottery.identity import signature_of
from onelayer_lottery.planting.contents import masked_weights
from onelayer_lottery.ticket.format import TicketError, read_ticket, write_ticket
from onelayer_lottery.ticket.inspection import inspect_ticket


def text_of(symbols) -> str:
    file = StringIO()
    symbols.save(file)
    return file.getvalue()


def dictionaries_of(task) -> Dictionaries:
    texts = map(text_of, (task.source_dictionary, task.target_dictionary))
    return translation_dictionaries("de", "en", *texts)


def trained_model(task, **flags):
    """A model whose scores and trained values are not those it started with."""
    model = build_tiny(task=task, **flags)
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.05 * torch.randn(parameter.shape, generator=generator)
    return model.eval()


def checkpoint_of(model, **flags):
    task = Namespace(data="", source_lang="de", target_lang="en", left_pad_source=True)
    model_arguments = Namespace(**{**vars(model.arguments), **flags})
    return {
        "cfg": {"model": model_arguments, "task": task},
        "model": copy.deepcopy(model.state_dict()),
    }


VARIANTS = {
    "masks only": {},
    "multi-layer": {"mask_share": "none"},
    "keep 0.3": {"mask_keep": 0.3, "mask_init": "signed-constant", "mask_gain": 0.5},
    "keep 1": {"mask_keep": 1.0, "mask_fan": "full"},
    "trained": {
        "mask_train": "norm,bias,positions",
        "encoder_learned_pos": True,
        "decoder_learned_pos": True,
    },
    "fixed positions": {"encoder_learned_pos": True, "mask_init": "kaiming-normal"},
    "pre-norm": {"encoder_normalize_before": True, "decoder_normalize_before": True},
    "untied": {"share_decoder_input_output_embed": False},
    "all shared": {"share_all_embeddings": True},
    "scales": {"mask_scale": "row-column"},
    "signed": {"mask_method": "signed", "mask_keep": 0.6, "mask_scale": "row"},
    "scales of tied embeddings": {"mask_scale": "row", "share_all_embeddings": True},
}


@pytest.fixture(params=VARIANTS)
def case(request, tmp_path):
    """A trained model, and its ticket written to a file and read back."""
    flags = VARIANTS[request.param]
    joined = flags.get("share_all_embeddings", False)
    task = translation_task(40, 40 if joined else 30, joined=joined)
    model = trained_model(task, **flags)
    dictionaries = dictionaries_of(task)
    state = checkpoint_of(model)
    ticket = ticket_from_checkpoint(state, dictionaries=dictionaries)
    write_ticket(ticket, tmp_path / "model.ticket")
    return model, read_ticket(tmp_path / "model.ticket"), task, flags


def test_masks_and_frozen_weights_survive_to_the_bit(case):
    model, ticket, task, flags = case
    restored = build_tiny(task=task, **flags)
    restored.load_state_dict(checkpoint_from_ticket(ticket)["model"])
    for (name, ours), (_, theirs) in zip(
        masked_weights(model), masked_weights(restored)
    ):
        assert torch.equal(ours.mask(), theirs.mask()), name
        assert torch.equal(ours.frozen.weight, theirs.frozen.weight), name
    sample = batch(target=30)
    with torch.no_grad():
        assert torch.equal(model(**sample)[0], restored.eval()(**sample)[0])


def test_the_baked_model_is_stock_and_computes_the_same(case):
    model, ticket, _, _ = case
    baked, _ = baked_model(ticket)
    assert type(baked).__module__.startswith("fairseq.")
    sample = batch(target=30)
    with torch.no_grad():
        assert torch.equal(model(**sample)[0], baked(**sample)[0])


def test_a_baked_checkpoint_loads_strictly_into_the_stock_model(case):
    model, ticket, task, flags = case
    state = baked_checkpoint(ticket, dtype=torch.float32)
    assert state["cfg"]["model"]["arch"] == "transformer"
    plain = {k: v for k, v in flags.items() if not k.startswith("mask")}
    plain.setdefault("share_decoder_input_output_embed", True)
    stock = build_tiny("transformer", task, **plain)
    expected = set(stock.state_dict()) - fast_path_names(stock)
    assert set(state["model"]) == expected
    stock.load_state_dict(state["model"], strict=True)
    stock.train().eval()
    for layer in stock.encoder.layers:
        layer.can_use_fastpath = False  # of fairseq 0.12.2: other rounding
    sample = batch(target=30)
    with torch.no_grad():
        assert torch.equal(model(**sample)[0], stock(**sample)[0])


def test_signs_without_the_method_are_refused():
    task = translation_task()
    state = checkpoint_of(trained_model(task, mask_method="signed"))
    ticket = ticket_from_checkpoint(state, dictionaries=dictionaries_of(task))
    ticket.config["model"]["mask_method"] = "topk"
    for turn in (baked_model, checkpoint_from_ticket):
        with pytest.raises(TicketError, match=r"signs for .* --mask-method is topk"):
            turn(ticket)


def test_a_ticket_holds_no_path_and_nothing_of_the_training():
    model = trained_model(translation_task())
    state = checkpoint_of(model, save_dir="secret/runs", lr=[0.1], tensorboard="x")
    ticket = ticket_from_checkpoint(state)
    assert "secret" not in str(ticket.config)
    assert set(ticket.config) == {"arch", "model", "task"}
    assert ticket.config["model"]["encoder_layers"] == TINY["encoder_layers"]
    assert "lr" not in ticket.config["model"]


def test_half_precision_bakes_to_half_the_size():
    task = translation_task()
    dictionaries = dictionaries_of(task)
    ticket = ticket_from_checkpoint(
        checkpoint_of(trained_model(task)), dictionaries=dictionaries
    )
    single, half = (
        baked_checkpoint(ticket, dtype=dtype)["model"]
        for dtype in (torch.float32, torch.float16)
    )
    name = "encoder.layers.0.fc1.weight"
    assert half[name].dtype == torch.float16
    assert torch.equal(single[name].half(), half[name])


def test_a_ticket_of_a_restored_model_is_the_same_ticket(case):
    _, ticket, _, _ = case
    restored = checkpoint_from_ticket(ticket)
    texts = (ticket.dictionaries["source"], ticket.dictionaries["target"])
    again = ticket_from_checkpoint(
        restored, dictionaries=translation_dictionaries("de", "en", *texts)
    )
    assert again.tied == ticket.tied
    for name, masked in ticket.masks.items():
        assert (again.masks[name].mask == masked.mask).all(), name


def test_dictionaries_that_do_not_fit_are_refused():
    state = checkpoint_of(trained_model(translation_task(40, 30)))
    with pytest.raises(LotteryError, match="dictionary of en has 31 symbols, the"):
        ticket_from_checkpoint(
            state, dictionaries=dictionaries_of(translation_task(40, 31))
        )


def test_scores_that_were_copied_apart_are_tied():
    state = checkpoint_of(trained_model(translation_task()))
    key = "decoder.output_projection.masked.scores"
    state["model"][key] = state["model"][key].clone()  # as saved from a GPU
    ticket = ticket_from_checkpoint(state)
    assert ticket.tied == {"decoder.output_projection": "decoder.embed_tokens"}


def test_a_dense_checkpoint_cannot_become_a_ticket():
    dense = build_tiny("transformer", share_decoder_input_output_embed=True)
    with pytest.raises(LotteryError, match="it has no masks: it is a checkpoint of a"):
        ticket_from_checkpoint(checkpoint_of(dense))


def test_dictionaries_are_looked_for_in_order(tmp_path):
    state = checkpoint_of(trained_model(translation_task()))
    state["cfg"]["task"].data = str(tmp_path / "data-bin")
    with pytest.raises(LotteryError, match=r"found no dict\.de\.txt and dict\.en\.txt"):
        find_dictionaries(state, beside=tmp_path)
    (tmp_path / "data-bin").mkdir()
    for language in ("de", "en"):
        (tmp_path / "data-bin" / f"dict.{language}.txt").write_text(f"{language} 1\n")
    found = find_dictionaries(state, beside=tmp_path)
    assert found == translation_dictionaries("de", "en", "de 1\n", "en 1\n")


def test_languages_that_the_checkpoint_does_not_name_are_those_of_the_data(tmp_path):
    task = translation_task()
    state = checkpoint_of(trained_model(task))
    state["cfg"]["task"].source_lang = state["cfg"]["task"].target_lang = None
    with pytest.raises(LotteryError, match=r"found no dict\.LANGUAGE\.txt"):
        find_dictionaries(state, beside=tmp_path)
    (tmp_path / "train.en-fr.en.idx").write_bytes(b"")
    (tmp_path / "dict.en.txt").write_text(text_of(task.source_dictionary))
    (tmp_path / "dict.fr.txt").write_text(text_of(task.target_dictionary))
    found = find_dictionaries(state, beside=tmp_path)
    assert found.flags == {"source_lang": "en", "target_lang": "fr"}
    ticket = ticket_from_checkpoint(state, dictionaries=found)
    assert ticket.config["task"]["target_lang"] == "fr"


def test_a_restored_model_that_started_from_a_dense_one_asks_for_none():
    task = translation_task()
    model = trained_model(task, mask_method="signed", mask_scale="row")
    state = checkpoint_of(model, mask_preset="best-from-dense", start_inside=True)
    ticket = ticket_from_checkpoint(state, dictionaries=dictionaries_of(task))
    flags = dict(checkpoint_from_ticket(ticket)["cfg"]["model"])
    built = type(model).build_model(Namespace(**flags), task)
    assert built.mask_config.mask_start == ""


def damaged(ticket, change):
    broken = copy.deepcopy(ticket)
    change(broken)
    return broken


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda t: (setattr(t, "seed", 2), t.config["model"].update(mask_seed=2)),
            "the frozen weights of encoder.embed_tokens drawn here differ",
        ),
        (lambda t: setattr(t, "seed", 2), "its mask_seed contradicts its settings"),
        (lambda t: setattr(t, "stream", 9), "are of stream 9, this version draws"),
        (
            lambda t: t.masks.pop("encoder.layers.0.fc1"),
            "the ticket has no mask or weight for encoder.layers.0.fc1",
        ),
        (
            lambda t: t.config["model"].update(encoder_layers=1),
            "a mask for encoder.layers.1.self_attn.k_proj, which its architecture",
        ),
        (
            lambda t: t.config["model"].update(encoder_ffn_embed_dim=8),
            "mask of encoder.layers.0.fc1 has the shape (32, 16), its architecture and"
            " dictionaries ask for (8, 16)",
        ),
        (
            lambda t: t.tied.update({"encoder.layers.0.fc1": "encoder.layers.1.fc1"}),
            "the ticket ties encoder.layers.0.fc1 to encoder.layers.1.fc1, its model",
        ),
        (
            lambda t: t.dense.update({"encoder.odd.weight": np.zeros(3)}),
            "the ticket has encoder.odd.weight, which its model does not",
        ),
        (
            lambda t: t.config.update(arch="transformer"),
            "the ticket's architecture transformer is not known here",
        ),
    ],
)
def test_a_ticket_that_contradicts_itself_is_refused(change, message):
    task = translation_task()
    dictionaries = dictionaries_of(task)
    ticket = ticket_from_checkpoint(
        checkpoint_of(trained_model(task)), dictionaries=dictionaries
    )
    with pytest.raises(TicketError) as error:
        baked_model(damaged(ticket, change))
    assert message in str(error.value)


def test_inspect_names_a_model_as_its_training_does():
    model = trained_model(translation_task(), mask_method="signed", mask_keep=0.3)
    report = inspect_ticket(ticket_from_checkpoint(checkpoint_of(model)))
    assert report["signature"] == signature_of(vars(model.mask_config))


def test_one_dictionary_for_both_languages_is_found(tmp_path):
    state = checkpoint_of(trained_model(translation_task()))
    (tmp_path / "dict.txt").write_text("wort 1\n")
    texts = find_dictionaries(state, beside=tmp_path).texts
    assert texts == {"source": "wort 1\n", "target": "wort 1\n"}
