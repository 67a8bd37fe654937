"""Masked RoBERTa: what is masked, what is trained, its head, tickets and imports."""

import copy
import json
from argparse import Namespace
from io import StringIO

import numpy as np
import pytest
import torch
from fairseq.data.encoders.gpt2_bpe_utils import bytes_to_unicode
from fairseq.models import ARCH_CONFIG_REGISTRY
from stock import batch, build_roberta, build_tiny, dictionary, sentence_task

from onelayer_lottery.conversion.from_checkpoint import (
    ticket_from_checkpoint,
)
from onelayer_lottery.conversion.tasks import Dictionaries, find_dictionaries
from onelayer_lottery.conversion.to_checkpoint import (
    baked_checkpoint,
    checkpoint_from_ticket,
)
from onelayer_lottery.conversion.to_model import baked_model
from onelayer_lottery.errors import LotteryError
from onelayer_lottery.planting.contents import masked_weights
from onelayer_lottery.runtime.classifier import Classifier
from onelayer_lottery.text.subwords import build_bpe, read_bpe
from onelayer_lottery.ticket.format import Bpe, TicketError, read_ticket, write_ticket

HEAD = "classification_heads.sentence"
EMBED = "encoder.sentence_encoder.embed_tokens"


def tokens():
    return batch()["src_tokens"]


def trained_names(model):
    masks = {id(weight.scores) for _, weight in masked_weights(model)}
    return {
        name
        for name, parameter in model.named_parameters()
        if parameter.requires_grad and id(parameter) not in masks
    }


def classify(model):
    return model(tokens(), classification_head_name="sentence")[0]


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("tiny", (128, 256, 4, 3)),
        ("base", (768, 3072, 12, 12)),
        ("large", (1024, 4096, 16, 24)),
    ],
)
def test_architectures_have_the_shapes_of_roberta(name, shape):
    for prefix, share in (("onelayer_random", "layers"), ("random", "none")):
        args = Namespace()
        ARCH_CONFIG_REGISTRY[f"roberta_{prefix}_{name}"](args)
        assert shape == (
            args.encoder_embed_dim,
            args.encoder_ffn_embed_dim,
            args.encoder_attention_heads,
            args.encoder_layers,
        )
        assert (args.mask_share, args.mask_train) == (share, "positions,head")
        assert args.activation_fn == "gelu"
        assert args.encoder_learned_pos


def test_by_default_head_and_positions_are_trained_and_all_else_masked_or_fixed():
    model = build_roberta()
    parts = ("dense.weight", "dense.bias", "out_proj.weight", "out_proj.bias")
    assert trained_names(model) == {
        *(f"{HEAD}.{part}" for part in parts),
        "encoder.sentence_encoder.embed_positions.weight",
    }
    masked = {name for name, _ in masked_weights(model)}
    inside = ("k_proj", "v_proj", "q_proj", "out_proj")
    stack = "encoder.sentence_encoder.layers"
    assert masked == {
        *(f"{stack}.{n}.self_attn.{part}" for n in range(2) for part in inside),
        *(f"{stack}.{n}.{part}" for n in range(2) for part in ("fc1", "fc2")),
        *(EMBED, "encoder.lm_head.dense"),
    }


@pytest.mark.parametrize(
    ("train", "some", "absent"),
    [
        ("none", set(), {f"{HEAD}.dense.weight"}),
        (
            "positions",
            {"encoder.sentence_encoder.embed_positions.weight"},
            {f"{HEAD}.dense.weight"},
        ),
        (
            "norm,bias,head",
            {
                "encoder.sentence_encoder.layernorm_embedding.weight",
                "encoder.lm_head.bias",
                "encoder.lm_head.layer_norm.weight",
                f"{HEAD}.out_proj.weight",
            },
            {"encoder.sentence_encoder.embed_positions.weight"},
        ),
        ("embed,bias", {f"{EMBED}.weight", f"{HEAD}.dense.bias"}, set()),
    ],
)
def test_what_is_trained_follows_the_flag(train, some, absent):
    model = build_roberta(mask_train=train)
    names = trained_names(model)
    assert some <= names
    assert not absent & names
    masked = {name for name, _ in masked_weights(model)}
    heads = {f"{HEAD}.dense", f"{HEAD}.out_proj"}
    assert heads & masked == (set() if "head" in train else heads)


@pytest.mark.parametrize("train", ["head", "none", "norm,bias,positions,head"])
def test_every_score_and_all_that_is_trained_gets_a_gradient(train):
    model = build_roberta(mask_train=train).train()
    classify(model).square().sum().backward()
    model(tokens())[0].square().mean().backward()
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            assert parameter.grad is not None, name
            assert parameter.grad.abs().sum() > 0, name


def test_layers_share_one_frozen_tensor_and_the_head_has_its_own():
    model = build_roberta(mask_train="none")
    layers = model.encoder.sentence_encoder.layers
    assert layers[0].fc1.masked.frozen is layers[1].fc1.masked.frozen
    alone = build_roberta("roberta_random_tiny").encoder.sentence_encoder.layers
    assert not torch.equal(
        alone[0].fc1.masked.frozen.weight, alone[1].fc1.masked.frozen.weight
    )


def test_the_language_model_head_is_tied_to_the_embedding():
    model = build_roberta()
    head, embed = model.encoder.lm_head, model.encoder.sentence_encoder.embed_tokens
    assert head.masked is embed.masked
    untied = build_roberta(untie_weights_roberta=True).encoder
    assert untied.lm_head.masked is not untied.sentence_encoder.embed_tokens.masked


def test_the_head_depends_on_the_seed_of_the_masks_only():
    torch.manual_seed(1)
    one = build_roberta().state_dict()
    torch.manual_seed(2)
    two = build_roberta().state_dict()
    assert all(torch.equal(one[name], two[name]) for name in one)
    other = build_roberta(mask_seed=2).state_dict()
    name = f"{HEAD}.dense.weight"
    assert not torch.equal(one[name], other[name])


@pytest.mark.parametrize("train", ["head", "none"])
def test_a_head_of_other_classes_starts_anew_when_a_checkpoint_is_loaded(train):
    trained = build_roberta(classes=3, mask_train=train)
    model = build_roberta(classes=2, mask_train=train)
    fresh = copy.deepcopy(model.state_dict())
    model.load_state_dict(copy.deepcopy(trained.state_dict()))
    found = model.state_dict()
    for name, tensor in found.items():
        assert torch.equal(tensor, fresh[name]), name  # the same seed made both


@pytest.mark.parametrize("train", ["head", "none"])
def test_heads_of_a_checkpoint_are_registered_when_asked(train):
    model = build_roberta(mask_train=train)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.1
    bare = build_roberta(classes=0, mask_train=train, load_checkpoint_heads=True)
    bare.load_state_dict(copy.deepcopy(model.state_dict()))
    assert torch.equal(classify(bare.eval()), classify(model.eval()))


def test_a_checkpoint_without_a_head_gets_one():
    pretrained = build_roberta(classes=0)
    model = build_roberta()
    model.load_state_dict(copy.deepcopy(pretrained.state_dict()))
    assert f"{HEAD}.dense.weight" in model.state_dict()


def test_a_masked_head_does_not_load_as_a_dense_one():
    state = copy.deepcopy(build_roberta(mask_train="none").state_dict())
    with pytest.raises(SystemExit, match="tensors differ from this model's, first"):
        build_roberta(mask_train="head").load_state_dict(state)


def test_too_small_a_fraction_for_the_head_ends_with_a_sentence():
    task = sentence_task()
    with pytest.raises(SystemExit, match=f"keeps none of the 16 weights of {HEAD}.out"):
        build_roberta(task=task, classes=1, mask_train="none", mask_keep=0.02)


@pytest.mark.parametrize(
    ("build", "flags", "message"),
    [
        (build_tiny, {"mask_train": "head"}, "this architecture has no classification"),
        (build_roberta, {"mask_train": "heads"}, "--mask-train has 'heads'; give none"),
        (
            build_roberta,
            {"spectral_norm_classification_head": True},
            "--spectral-norm-classification-head computes the head's weight anew",
        ),
        (build_roberta, {"mha_heads_to_keep": 1}, "--mha-heads-to-keep 1 takes heads"),
        (build_roberta, {"ffn_blocks_to_remove": 1}, "--ffn-blocks-to-remove 1 takes"),
    ],
)
def test_flags_that_cannot_work_are_refused(build, flags, message):
    with pytest.raises(SystemExit) as error:
        build(**flags)
    assert message in str(error.value)


# Tickets


def text_of(symbols) -> str:
    file = StringIO()
    symbols.save(file)
    return file.getvalue()


TEXT = text_of(dictionary(39))  # <mask> is no part of the file
LABELS = "no 5\nyes 4\nmaybe 3\n"


def checkpoint_of(model, **task):
    settings = {
        **{"_name": "sentence_prediction", "data": "", "num_classes": 3},
        **{"init_token": 0, "separator_token": 2, "max_positions": 16},
        **{"classification_head_name": "sentence", "regression_target": False},
        **task,
    }
    return {
        "cfg": {"model": model.arguments, "task": settings},
        "model": copy.deepcopy(model.state_dict()),
    }


def ticket_of(model, texts=None, **task):
    texts = {"source": TEXT, "label": LABELS} if texts is None else texts
    return ticket_from_checkpoint(
        checkpoint_of(model, **task), dictionaries=Dictionaries(texts, {})
    )


def changed(model):
    """Scores and trained values are not those that the model started with."""
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.05 * torch.randn(parameter.shape, generator=generator)
    return model.eval()


@pytest.mark.parametrize(
    "flags",
    [
        {},
        {"mask_train": "none", "mask_keep": 0.3},
        {"mask_train": "norm,bias,positions,head", "mask_scale": "row"},
        {"mask_train": "embed,bias"},
        {"untie_weights_roberta": True, "mask_share": "none"},
    ],
    ids=lambda flags: " ".join(map(str, flags.values())) or "default",
)
def test_ticket_restored_and_baked_model_compute_the_same(flags, tmp_path):
    model = changed(build_roberta(**flags))
    write_ticket(ticket_of(model), tmp_path / "model.ticket")
    ticket = read_ticket(tmp_path / "model.ticket")
    tied = {} if "untie_weights_roberta" in flags else {"encoder.lm_head": EMBED}
    assert ticket.tied == ({} if "embed" in flags.get("mask_train", "") else tied)
    baked, _ = baked_model(ticket)
    restored = build_roberta(**flags)
    restored.load_state_dict(checkpoint_from_ticket(ticket)["model"])
    for other in (baked, restored.eval()):
        assert torch.equal(classify(other), classify(model))
        assert torch.equal(other(tokens())[0], model(tokens())[0])
    state = baked_checkpoint(ticket, dtype=torch.float32)
    assert state["cfg"]["model"]["arch"] == "roberta_base"
    assert state["cfg"]["task"]["_name"] == "sentence_prediction"
    untied = flags.get("untie_weights_roberta", False)
    stock = build_roberta("roberta_base", untie_weights_roberta=untied)
    stock.load_state_dict(state["model"], strict=True)
    assert torch.equal(classify(stock.eval()), classify(model))


def test_the_dictionaries_of_sentence_pairs_are_looked_for_in_their_folders(tmp_path):
    state = checkpoint_of(build_roberta(), data=str(tmp_path / "data-bin"))
    with pytest.raises(
        LotteryError, match=r"found no input0/dict\.txt and label/dict\.txt in"
    ):
        find_dictionaries(state, beside=tmp_path)
    for name, text in (("input0", TEXT), ("label", LABELS)):
        (tmp_path / "data-bin" / name).mkdir(parents=True)
        (tmp_path / "data-bin" / name / "dict.txt").write_text(text)
    texts = {"source": TEXT, "label": LABELS}
    assert find_dictionaries(state, beside=tmp_path) == Dictionaries(texts, {})
    state["cfg"]["task"]["regression_target"] = True
    found = find_dictionaries(state, beside=tmp_path)
    assert found == Dictionaries({"source": TEXT}, {})


def test_dictionaries_that_do_not_fit_are_refused():
    model = build_roberta()
    texts = {"source": text_of(dictionary(30)), "label": LABELS}
    with pytest.raises(LotteryError, match="dictionary of source has 31 symbols, the"):
        ticket_of(model, texts)
    texts = {"source": TEXT, "label": "no 5\nyes 4\n"}
    with pytest.raises(LotteryError, match="of labels has 2, the model 3 classes"):
        ticket_of(model, texts)


def test_a_ticket_that_lacks_a_dictionary_says_so():
    ticket = ticket_of(build_roberta())
    del ticket.dictionaries["label"]
    with pytest.raises(TicketError, match="the ticket has no dictionary of labels"):
        Classifier(ticket)
    del ticket.dictionaries["source"]
    with pytest.raises(TicketError, match="the ticket has no dictionary of its source"):
        baked_model(ticket)


def test_a_ticket_with_half_a_head_is_refused():
    ticket = ticket_of(build_roberta())
    del ticket.dense[f"{HEAD}.dense.weight"]
    with pytest.raises(TicketError, match="classification head sentence is malformed"):
        baked_model(ticket)


def test_a_ticket_without_the_head_of_its_task_is_refused():
    ticket = ticket_of(build_roberta(), classification_head_name="other")
    with pytest.raises(TicketError, match="has no classification head other"):
        Classifier(ticket)


def test_a_classifier_gives_the_label_and_probability_of_the_model():
    model = changed(build_roberta())
    classifier = Classifier(ticket_of(model))
    pairs = [("w1 w2 w3", "w4"), ("w5", "w6 w7")]
    rows = [[0, 5, 6, 7, 2, 2, 8, 2], [0, 9, 2, 2, 10, 11, 2]]
    for pair, row, found in zip(pairs, rows, classifier.classify(pairs)):
        expected = model(torch.tensor([row]), classification_head_name="sentence")[0]
        probability, best = expected.detach().softmax(-1).max(-1)
        assert found.label == ("no", "yes", "maybe")[best]
        assert found.probability == pytest.approx(float(probability), abs=1e-5), pair


def test_too_long_a_pair_is_cut_with_a_warning():
    classifier = Classifier(ticket_of(build_roberta()))
    said = []
    long = [("w1 " * 20, "w2 w3")]
    found = classifier.scores(long, warn=said.append)
    assert "a pair of 26 symbols is longer than the 16 that the model" in said[0]
    assert np.array_equal(found, classifier.scores([("w1 " * 10, "w2 w3")]))


def test_an_empty_sentence_is_refused():
    classifier = Classifier(ticket_of(build_roberta()))
    with pytest.raises(LotteryError, match="sentence 2 is empty"):
        classifier.classify([("w1", " ")])


def test_a_ticket_that_lacks_a_flag_says_so():
    ticket = ticket_of(build_roberta())
    del ticket.config["task"]["num_classes"]
    with pytest.raises(TicketError, match="the ticket does not say its num_classes"):
        Classifier(ticket)


@pytest.fixture
def gpt2(tmp_path):
    """GPT-2's two files with one merge, and a dictionary of its numbers."""
    folder = tmp_path / "gpt2"
    folder.mkdir()
    letters = [*bytes_to_unicode().values(), "he"]
    content = json.dumps({letter: n for n, letter in enumerate(letters)})
    (folder / "encoder.json").write_text(content)
    (folder / "vocab.bpe").write_text("#version: 0.2\nh e\n")
    (folder / "dict.txt").write_text("".join(f"{n} 1\n" for n in range(257)))
    return folder


def test_a_ticket_may_have_the_subwords_of_gpt2(gpt2, tmp_path):
    ticket = ticket_of(build_roberta())
    ticket.bpe = read_bpe(gpt2, None)
    assert ticket.bpe.kind == "gpt2"
    write_ticket(ticket, tmp_path / "model.ticket")
    bpe = build_bpe(read_ticket(tmp_path / "model.ticket").bpe)
    assert bpe.decode(bpe.encode("hehe é")) == "hehe é"
    assert bpe.encode("hehe") == "256 256"


def test_a_folder_without_the_subwords_is_refused(gpt2):
    (gpt2 / "vocab.bpe").unlink()
    with pytest.raises(LotteryError, match=r"cannot read --bpe .*vocab\.bpe: No such"):
        read_bpe(gpt2, None)
    with pytest.raises(LotteryError, match="of gpt2 is not of two files"):
        build_bpe(Bpe("gpt2", b"{}"))


def test_masks_start_from_a_dense_model_with_its_head(tmp_path):
    dense = build_roberta("roberta_base")
    state = {"cfg": None, "args": Namespace(task="sentence_prediction", data="gone")}
    torch.save({**state, "model": dense.state_dict()}, tmp_path / "model.pt")
    model = build_roberta(mask_start=str(tmp_path / "model.pt"))
    theirs = dense.state_dict()[f"{HEAD}.dense.weight"]
    assert torch.equal(model.state_dict()[f"{HEAD}.dense.weight"], theirs)
    other = build_roberta(mask_start=str(tmp_path / "model.pt"), classes=2)
    drawn = build_roberta(classes=2).state_dict()[f"{HEAD}.out_proj.weight"]
    assert torch.equal(other.state_dict()[f"{HEAD}.out_proj.weight"], drawn)


def test_a_regression_gives_a_value():
    model = build_roberta(classes=1)
    ticket = ticket_of(model, {"source": TEXT}, num_classes=1, regression_target=True)
    (found,) = Classifier(ticket).classify([("w1", "w2")])
    assert found.probability is None
    float(found.label)


# Imported embeddings


@pytest.fixture
def pretrained(tmp_path):
    """A stock RoBERTa with another order of symbols, in a folder as published."""
    words = dictionary(4)
    for number in reversed(range(35)):
        words.add_symbol(f"w{number}")
    (tmp_path / "dict.txt").write_text(text_of(words))
    words.add_symbol("<mask>")
    task = sentence_task()
    task.source_dictionary = words
    model = build_roberta("roberta_base", task, classes=0, max_positions=24)
    path = tmp_path / "model.pt"
    state = {"cfg": None, "args": Namespace(task="masked_lm", data="gone")}
    torch.save({**state, "model": model.state_dict()}, path)
    return path, model, words


def test_tokens_and_positions_are_imported_by_symbol_and_place(pretrained):
    path, source, words = pretrained
    task = sentence_task()
    model = build_roberta(
        task=task, encoder_embed_path=str(path), mask_keep=0.5, mask_train="head"
    )
    frozen = model.encoder.sentence_encoder.embed_tokens.masked.frozen.weight
    theirs = source.encoder.sentence_encoder.embed_tokens.weight
    for symbol in ("<s>", "w0", "w34", "<mask>"):
        ours = frozen[task.source_dictionary.index(symbol)]
        expected = theirs[words.index(symbol)] * 2**0.5
        assert torch.allclose(ours, expected), symbol
    positions = model.encoder.sentence_encoder.embed_positions.weight
    their_positions = source.encoder.sentence_encoder.embed_positions.weight
    assert torch.equal(positions, their_positions[: len(positions)])
    assert not positions.requires_grad
    assert "encoder.sentence_encoder.embed_positions.weight" in model.state_dict()


def test_imported_positions_are_trained_when_asked(pretrained):
    path, _, _ = pretrained
    model = build_roberta(encoder_embed_path=str(path), mask_train="positions")
    assert model.encoder.sentence_encoder.embed_positions.weight.requires_grad


def test_a_ticket_carries_what_was_imported(pretrained):
    path, _, _ = pretrained
    model = changed(build_roberta(encoder_embed_path=str(path)))
    ticket = ticket_of(model)
    path.unlink()
    assert str(path) not in str(ticket.config)
    baked, _ = baked_model(ticket)
    assert torch.equal(classify(baked), classify(model))
    flags = ticket.config["model"]
    restored = build_roberta(**{k: flags[k] for k in flags if "embed" in k})
    restored.load_state_dict(checkpoint_from_ticket(ticket)["model"])
    restored.eval()
    assert torch.equal(classify(restored), classify(model))


def test_too_few_positions_are_refused(pretrained):
    path, _, _ = pretrained
    with pytest.raises(SystemExit) as error:
        build_roberta(encoder_embed_path=str(path), max_positions=32)
    message = "has 26 positions of dimension 16, the model needs 34 of 16; lower --max"
    assert message in str(error.value)


def test_a_text_file_has_no_positions(tmp_path):
    lines = [f"w{n} " + " ".join(["0.5"] * 16) for n in range(35)]
    path = tmp_path / "vectors.txt"
    path.write_text("\n".join(lines) + "\n")
    model = build_roberta(encoder_embed_path=str(path), embed_missing=0.2)
    positions = model.encoder.sentence_encoder.embed_positions.weight
    drawn = build_roberta().encoder.sentence_encoder.embed_positions.weight
    assert torch.equal(positions, drawn)
