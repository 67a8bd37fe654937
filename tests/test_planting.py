"""Planted models: what is masked, shared, fixed, trained; equality with stock."""

import copy

import pytest
import torch
from fairseq.models import ARCH_CONFIG_REGISTRY, ARCH_MODEL_REGISTRY
from stock import batch, build, build_tiny, dictionary, translation_task
from torch import nn

from onelayer_lottery.core.frozen import frozen_weight
from onelayer_lottery.planting.config import MaskConfig
from onelayer_lottery.planting.contents import frozen_tensors, masked_weights
from onelayer_lottery.planting.plant import plant
from onelayer_lottery.planting.roles import role_of

IWSLT = (8848, 6632)
WMT = (41000, 41000)

# arch: vocabularies, bytes of the masks, embeddings, one encoder and decoder layer, and
# values of all norms and biases: the paper's exact sizes.
SIZES = {
    "small": (IWSLT, 4_922_880, 7_925_760, 5_242_880, 86_016),
    "wide": (IWSLT, 17_710_080, 15_851_520, 20_971_520, 172_032),
    "deep": (IWSLT, 8_855_040, 7_925_760, 5_242_880, 172_032),
    "base": (WMT, 10_753_024, 41_984_000, 7_340_032, 98_304),
    "wider": (WMT, 32_516_096, 83_968_000, 29_360_128, 196_608),
    "deeper": (WMT, 16_258_048, 41_984_000, 7_340_032, 196_608),
    "tiny": (IWSLT, 370_560, 1_981_440, 327_680, 10_752),
}


def count(tensors):
    return sum(tensor.numel() for tensor in tensors)


def scores_of(model):
    return [weight.scores for _, weight in masked_weights(model)]


def densely_trained(model):
    scores = {id(tensor) for tensor in scores_of(model)}
    return [p for p in model.parameters() if p.requires_grad and id(p) not in scores]


@pytest.mark.slow
@pytest.mark.parametrize("shape", SIZES)
def test_each_architecture_has_the_papers_number_of_values(shape):
    vocabularies, mask_bytes, embeddings, one_layer, norms_and_biases = SIZES[shape]
    task = translation_task(*vocabularies)
    model = build(f"transformer_onelayer_random_{shape}", task, mask_train="norm,bias")
    assert count(scores_of(model)) == mask_bytes * 8
    assert count(frozen_tensors(model)) == embeddings + one_layer
    assert count(densely_trained(model)) == norms_and_biases


def test_by_default_nothing_is_trained_but_scores():
    model = build_tiny()
    assert densely_trained(model) == []
    assert all(p.requires_grad for p in model.parameters())


def test_the_multi_layer_baseline_has_its_own_frozen_weights_per_layer():
    shared = build_tiny("transformer_onelayer_random_tiny")
    unshared = build_tiny("transformer_random_tiny")
    flagged = build_tiny(mask_share="none")
    assert count(scores_of(unshared)) == count(scores_of(shared))
    assert count(frozen_tensors(unshared)) == count(scores_of(unshared))
    assert count(frozen_tensors(shared)) < count(frozen_tensors(unshared))
    for ours, theirs in zip(frozen_tensors(unshared), frozen_tensors(flagged)):
        assert torch.equal(ours, theirs)


def test_layers_share_one_frozen_tensor_and_differ_in_their_masks():
    first, second = build_tiny().decoder.layers[:2]
    for name in ("self_attn.k_proj", "encoder_attn.out_proj", "fc1", "fc2"):
        a, b = first.get_submodule(name).masked, second.get_submodule(name).masked
        assert a.frozen.weight is b.frozen.weight
        assert not torch.equal(a.mask(), b.mask())
    assert first.self_attn.k_proj.masked.frozen is not first.encoder_attn.k_proj.masked


def test_the_init_reaches_every_tensor_attention_included():
    model = build_tiny(mask_init="signed-constant", mask_fan="full", mask_gain=1.0)
    for name, weight in masked_weights(model):
        values = weight.frozen.weight.abs()
        if "embed" in name:
            values = values[values.sum(1) > 0]  # the row of the padding symbol is zero
        constant = (2 / values.shape[1]) ** 0.5
        torch.testing.assert_close(values, torch.full_like(values, constant))


def test_the_gain_scales_the_layers_and_not_the_embeddings():
    plain, scaled = build_tiny(mask_gain=1.0), build_tiny(mask_gain=0.5)
    for (name, ours), (_, theirs) in zip(masked_weights(plain), masked_weights(scaled)):
        factor = 0.5 if ".layers." in name else 1.0
        assert torch.equal(ours.frozen.weight * factor, theirs.frozen.weight), name


def test_frozen_weights_depend_on_seed_and_role_only():
    torch.manual_seed(1)
    flags = {"mask_seed": 5, "mask_keep": 0.25, "mask_preset": "paper-text"}
    model = build_tiny(**flags)
    torch.manual_seed(2)
    layer = build_tiny(**flags, encoder_layers=5).encoder.layers[4]
    expected = frozen_weight(5, "encoder.layers.*.fc1", shape=(32, 16), keep=0.25)
    assert torch.equal(layer.fc1.masked.frozen.weight, expected)
    assert torch.equal(model.encoder.layers[1].fc1.masked.frozen.weight, expected)


def test_two_models_of_one_seed_are_equal_in_every_value():
    torch.manual_seed(1)
    flags = {"mask_train": "norm,bias,positions", "encoder_learned_pos": True}
    first = build_tiny(**flags)
    torch.manual_seed(2)
    second = build_tiny(**flags)
    for a, b in zip(first.parameters(), second.parameters()):
        assert torch.equal(a, b)


def test_role_of_wildcards_the_layer_only_when_layers_share():
    name = "encoder.sentence_encoder.layers.11.self_attn.q_proj"
    assert role_of(name, "layers") == name.replace("11", "*")
    assert role_of(name, "none") == name
    assert role_of("decoder.embed_tokens", "layers") == "decoder.embed_tokens"


def test_every_score_has_a_gradient_and_nothing_else_has():
    model = build_tiny()
    model.train()
    model(**batch())[0].square().sum().backward()
    for name, weight in masked_weights(model):
        gradient = weight.scores.grad
        assert gradient is not None, name
        if "embed" not in name:
            assert (gradient != 0).float().mean() > 0.5, name
    assert all(not tensor.requires_grad for tensor in frozen_tensors(model))
    assert all(buffer.grad is None for buffer in model.buffers())


OPTIONS = {
    "stock": {},
    "pre-norm": {"encoder_normalize_before": True, "decoder_normalize_before": True},
    "learned positions": {"encoder_learned_pos": True, "decoder_learned_pos": True},
    "untied output": {"share_decoder_input_output_embed": False},
    "all embeddings shared": {"share_all_embeddings": True},
    "trained": {"mask_train": "norm,bias"},
    "multi-layer": {"mask_share": "none"},
    "cross+self attention": {"no_cross_attention": True, "cross_self_attention": True},
    "norm of embeddings": {"layernorm_embedding": True},
}


def build_with(option, **more):
    flags = {**OPTIONS[option], **more}
    task = translation_task(40, joined=flags.get("share_all_embeddings", False))
    return build_tiny(task=task, **flags)


@pytest.mark.parametrize("option", OPTIONS)
def test_teacher_forcing_equals_incremental_decoding(option):
    model = build_with(option).eval()
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


@pytest.mark.parametrize("option", OPTIONS)
def test_keep_one_equals_the_stock_model_holding_the_same_weights(option):
    planted = build_with(option, mask_keep=1.0).eval()
    flags = {k: v for k, v in OPTIONS[option].items() if not k.startswith("mask")}
    task = translation_task(40, joined=flags.get("share_all_embeddings", False))
    flags.setdefault("share_decoder_input_output_embed", True)
    stock = build_tiny("transformer", task, **flags).eval()
    with torch.no_grad():
        for name, parameter in stock.named_parameters():
            layer, _, key = name.rpartition(".")
            if not hasattr(stock.get_submodule(layer), "load_to_BT"):
                parameter.copy_(getattr(planted.get_submodule(layer), key))
        sample = batch()
        assert torch.equal(planted(**sample)[0], stock(**sample)[0])


@pytest.mark.parametrize("option", OPTIONS)
def test_prepared_for_generation_a_model_is_stock_to_the_bit(option):
    learned = {"mask_method": "signed", "mask_scale": "row"}
    model = build_with(option, **learned, mask_anneal=0.5, max_update=10)
    sample = batch()
    with torch.no_grad():
        expected, _ = copy.deepcopy(model).eval()(**sample)
        model.train()
        model.set_num_updates(1)  # its masks are soft now
        model.make_generation_fast_()
        assert torch.equal(model(**sample)[0], expected)
    assert not list(masked_weights(model))
    assert not list(frozen_tensors(model))
    if option != "untied output":
        decoder = model.decoder
        assert decoder.output_projection.weight is decoder.embed_tokens.weight


def test_tied_embeddings_are_one_mask_and_one_effective_matrix():
    model = build_tiny()
    assert model.decoder.output_projection.masked is model.decoder.embed_tokens.masked
    assert model.encoder.embed_tokens.masked is not model.decoder.embed_tokens.masked
    everything = build_with("all embeddings shared")
    assert everything.encoder.embed_tokens is everything.decoder.embed_tokens
    projection = everything.decoder.output_projection
    assert projection.masked is everything.encoder.embed_tokens.masked


def test_the_row_of_the_padding_symbol_is_zero():
    model = build_tiny()
    assert torch.equal(model.encoder.embed_tokens.weight[1], torch.zeros(16))


def test_what_is_fixed_is_neutral_and_not_in_the_checkpoint():
    model = build_tiny()
    layer = model.encoder.layers[0]
    assert torch.equal(layer.fc1.bias, torch.zeros(32))
    assert torch.equal(layer.final_layer_norm.weight, torch.ones(16))
    assert torch.equal(layer.final_layer_norm.bias, torch.zeros(16))
    stored = {name.rpartition(".")[2] for name in model.state_dict()}
    assert stored <= {"scores", "version", "_float_tensor", "mask_version"}


def test_norms_and_biases_train_when_asked():
    model = build_tiny(mask_train="norm,bias")
    names = {name.rpartition(".")[2] for name, _ in model.named_parameters()}
    assert names == {"scores", "weight", "bias"}
    assert "encoder.layers.0.fc1.bias" in model.state_dict()
    model(**batch())[0].square().sum().backward()
    assert model.decoder.layers[0].encoder_attn.out_proj.bias.grad.abs().sum() > 0
    assert model.decoder.layers[0].final_layer_norm.weight.grad.abs().sum() > 0


@pytest.mark.parametrize("convert", [copy.deepcopy, nn.Module.half, nn.Module.bfloat16])
def test_sharing_survives_copies_and_half_precision(convert):
    model = build_tiny()
    sizes = count(frozen_tensors(model))
    converted = convert(model)
    assert count(frozen_tensors(converted)) == sizes
    layers = converted.decoder.layers
    first, last = (layer.fc2.masked.frozen.weight for layer in (layers[0], layers[-1]))
    assert first is last
    for _, weight in masked_weights(converted):
        assert int(weight.mask().sum()) == round(0.5 * weight.scores.numel())


def test_loading_a_state_dict_restores_the_model():
    trained, fresh = build_tiny(), build_tiny()
    with torch.no_grad():
        for scores in scores_of(trained):
            scores.add_(torch.randn_like(scores))
    fresh.eval()(**batch())  # a cached weight must not survive
    fresh.load_state_dict(trained.state_dict())
    sample = batch()
    assert torch.equal(trained.eval()(**sample)[0], fresh(**sample)[0])


def test_a_language_model_is_planted_like_a_translation_model():
    from types import SimpleNamespace

    from fairseq.models.transformer_lm import TransformerLanguageModelConfig

    config = TransformerLanguageModelConfig(
        decoder_embed_dim=16,
        decoder_ffn_embed_dim=32,
        decoder_layers=2,
        decoder_attention_heads=2,
        decoder_output_dim=16,
        decoder_input_dim=16,
        max_target_positions=20,
    )
    symbols = dictionary(30)
    task = SimpleNamespace(source_dictionary=symbols, target_dictionary=symbols)
    model = ARCH_MODEL_REGISTRY["transformer_lm"].build_model(config, task)
    plant(model, MaskConfig())
    assert_all_masked(model, model(torch.randint(4, 30, (2, 5)))[0])


def test_a_sentence_encoder_is_planted_like_a_translation_model():
    from argparse import Namespace
    from types import SimpleNamespace

    args = Namespace(
        encoder_embed_dim=16,
        encoder_ffn_embed_dim=32,
        encoder_layers=2,
        encoder_attention_heads=2,
        max_positions=20,
        tokens_per_sample=20,
    )
    ARCH_CONFIG_REGISTRY["roberta_base"](args)
    task = SimpleNamespace(source_dictionary=dictionary(30))
    model = ARCH_MODEL_REGISTRY["roberta_base"].build_model(args, task)
    del model.encoder.lm_head  # its weight is not inside a layer that can be planted
    plant(model, MaskConfig())
    tokens = torch.randint(4, 30, (2, 5))
    assert_all_masked(model, model(tokens, features_only=True)[0])


def assert_all_masked(model, output):
    output.square().sum().backward()
    assert densely_trained(model) == []
    assert all(scores.grad is not None for scores in scores_of(model))


def test_a_layer_that_cannot_be_planted_is_named():
    with pytest.raises(TypeError, match=r"cannot plant 0\.weight: a Conv1d is neither"):
        plant(nn.Sequential(nn.Conv1d(4, 4, 1)), MaskConfig())
