"""Masked layers by themselves: caching, sharing, precision."""

import copy
import io

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from onelayer_lottery import MaskedEmbedding, MaskedLinear, masked_weight, top_k_mask
from onelayer_lottery.core import methods, reference
from onelayer_lottery.core.mask import _StraightThrough, write_masked
from onelayer_lottery.core.modules import (
    Frozen,
    FrozenLinear,
    MaskedWeight,
    draw_scores,
    first_scales,
)


def linear(keep=0.5, out_features=6, in_features=8):
    return MaskedLinear(masked_weight((out_features, in_features), keep=keep))


def two_layers_of_one_frozen_weight():
    frozen = Frozen(masked_weight((16, 16)).frozen.weight)
    return nn.ModuleList(
        MaskedLinear(MaskedWeight(frozen, draw_scores(1, name, (16, 16)), keep=0.5))
        for name in "ab"
    )


@pytest.fixture
def count_masks(monkeypatch):
    calls = []

    def counted(scores, *rest, **named):
        calls.append(scores.shape)
        return write_masked(scores, *rest, **named)

    monkeypatch.setattr(methods, "write_masked", counted)
    return calls


def test_the_output_is_that_of_frozen_times_mask():
    layer = linear()
    x = torch.randn(3, 8)
    mask = top_k_mask(layer.masked.scores, 0.5)
    expected = x @ (layer.masked.frozen.weight * mask).T
    torch.testing.assert_close(layer(x), expected)
    assert int(mask.sum()) == 24


@pytest.mark.parametrize("method", ["topk", "signed"])
@pytest.mark.parametrize("anneal", [0, 4])
def test_weight_and_gradient_are_those_of_the_reference(method, anneal):
    """Through updates, in which the mask hardens and the last threshold is a hint."""
    weight = masked_weight((24, 32), keep=0.3, method=method, anneal=anneal)
    frozen, generator = weight.frozen.weight, torch.Generator().manual_seed(1)
    with torch.no_grad():
        weight.scores[0, :2] = torch.tensor([0.0, -0.0])
    for update in range(6):
        weight.set_num_updates(update)
        softness = max(0.0, 1 - update / anneal) if anneal else 0.0
        scores = weight.scores.detach().clone().requires_grad_()
        expected = reference.effective_weight(
            scores, frozen, keep=0.3, signed=method == "signed", softness=softness
        )
        torch.testing.assert_close(weight(), expected, rtol=1e-6, atol=1e-7)
        if not softness:
            assert torch.equal(weight(), expected)
        upstream = torch.randn(24, 32, generator=generator)
        expected.backward(upstream)
        weight.scores.grad = None
        weight().backward(upstream)
        assert torch.equal(weight.scores.grad, scores.grad)
        with torch.no_grad():
            weight.scores -= 0.01 * weight.scores.grad


def test_an_embedding_looks_up_the_effective_matrix():
    layer = MaskedEmbedding(masked_weight((10, 4)), padding_idx=1)
    tokens = torch.tensor([[2, 3, 1]])
    assert torch.equal(layer(tokens), layer.weight[tokens])


def test_only_the_scores_learn_and_are_stored():
    layer = linear()
    before = layer.masked.frozen.weight.clone()
    optimizer = torch.optim.SGD(layer.parameters(), lr=1.0)
    layer(torch.randn(3, 8)).square().sum().backward()
    optimizer.step()
    assert layer.masked.scores.grad.abs().min() > 0
    assert torch.equal(layer.masked.frozen.weight, before)
    assert not layer.masked.frozen.weight.requires_grad
    assert list(layer.state_dict()) == ["masked.scores"]


def test_the_mask_is_computed_once_for_many_passes(count_masks):
    layer = linear()
    for _ in range(3):  # as under --update-freq
        layer.masked.set_num_updates(7)
        layer(torch.randn(2, 8)).sum().backward()
    layer.eval()
    with torch.no_grad():
        for _ in range(10):
            layer(torch.randn(2, 8))
    assert len(count_masks) == 2  # one in training, one in evaluation


def test_a_weight_used_twice_passes_its_gradient_on_once(monkeypatch):
    passes = []
    backward = _StraightThrough.backward

    def counted(ctx, grad):
        passes.append(grad)
        return backward(ctx, grad)

    monkeypatch.setattr(_StraightThrough, "backward", staticmethod(counted))
    embedding = MaskedEmbedding(masked_weight((6, 8)))
    tokens = torch.tensor([1, 2])
    F.linear(embedding(tokens), embedding.weight).pow(2).sum().backward()
    assert len(passes) == 1
    scores, frozen = embedding.masked.scores, embedding.masked.frozen.weight
    dense = embedding.weight.detach().clone().requires_grad_()
    F.linear(F.embedding(tokens, dense), dense).pow(2).sum().backward()
    assert torch.equal(scores.grad, dense.grad * frozen * scores.detach().sign())


def test_a_signed_mask_turns_weights_and_learns_which():
    weight = masked_weight((6, 8), method="signed")
    scores, frozen = weight.scores, weight.frozen.weight
    expected = frozen * top_k_mask(scores, 0.5) * scores.detach().sign()
    assert torch.equal(weight().detach(), expected)
    assert torch.equal(frozen * weight.mask(), expected)
    assert {-1, 0, 1} == set(weight.mask().unique().tolist())
    slope = torch.randn(6, 8)
    weight().backward(slope)
    assert torch.equal(scores.grad, slope * frozen)


@pytest.mark.parametrize("method", ["topk", "signed"])
def test_larger_first_scores_are_a_smaller_learning_rate(method):
    """So that the scale of the first scores need not be a flag."""

    def weights_after_training(factor):
        masked = masked_weight((24, 32), anneal=8, method=method)
        with torch.no_grad():
            masked.scores.mul_(factor)
        layer = MaskedLinear(masked)
        adam = torch.optim.Adam([masked.scores], lr=factor * 0.03)
        generator = torch.Generator().manual_seed(5)
        for update in range(12):
            masked.set_num_updates(update)
            x, wanted = (torch.randn(16, n, generator=generator) for n in (32, 24))
            loss = F.mse_loss(layer(x), wanted)
            adam.zero_grad()
            loss.backward()
            adam.step()
            yield layer.weight.detach().clone()

    unscaled, scaled_up = (list(weights_after_training(f)) for f in (1, 4))
    assert all(map(torch.equal, unscaled, scaled_up))
    assert not torch.equal(unscaled[0], unscaled[-1])


def test_a_soft_signed_mask_has_the_signs_of_the_scores():
    weight = masked_weight((6, 8), method="signed", anneal=10)
    weight.set_num_updates(0)
    factor = weight().detach() / weight.frozen.weight
    assert torch.equal(factor.sign(), weight.scores.detach().sign())
    assert 0 < factor.abs().min() < 0.5


def test_a_mask_hardens_during_training_and_is_hard_in_evaluation():
    weight = masked_weight((6, 8), anneal=10)
    hard = weight.frozen.weight * weight.mask()

    def away(updates: int) -> float:
        weight.set_num_updates(updates)
        return float((weight().detach() - hard).abs().sum())

    assert away(0) > away(5) > away(9) > 0
    assert away(10) == away(11) == 0
    assert weight.softness == 0  # never less, for those who mix with it
    assert away(5) > 0
    weight.eval()
    assert away(5) == 0


@pytest.mark.parametrize("kind", ["tensor", "row", "row-column"])
def test_scales_multiply_the_weight_and_learn(kind):
    frozen, scores = Frozen(torch.randn(4, 6)), draw_scores(1, "a", (4, 6))
    scales = first_scales((4, 6), kind)
    weight = MaskedWeight(frozen, scores, keep=0.5, scales=scales)
    plain = weight().detach().clone()
    with torch.no_grad():
        for scale in weight.scales:
            scale.mul_(2)
    assert torch.equal(weight(), plain * 2 ** len(scales))
    weight().sum().backward()
    assert all(scale.grad.abs().sum() > 0 for scale in weight.scales)
    factor = 2 ** len(scales) * frozen.weight * weight.scores.detach().sign()
    torch.testing.assert_close(weight.scores.grad, factor)


def test_a_product_that_changed_is_not_used_by_an_old_graph():
    layer = linear()
    loss = layer(torch.randn(2, 8, requires_grad=True)).sum()
    layer.masked.scores.detach().neg_().mul_(torch.rand(6, 8))
    layer(torch.randn(2, 8))
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


@pytest.mark.parametrize(
    "change",
    [
        lambda layer, new: layer.masked.scores.detach().copy_(new),
        lambda layer, new: layer.load_state_dict({"masked.scores": new}),
        lambda layer, new: (
            layer.masked.scores.data.copy_(new),
            layer.masked.set_num_updates(1),  # what fairseq's trainer does
        ),
        lambda layer, new: (layer.masked.scores.data.copy_(new), layer.eval()),
    ],
    ids=["in place", "load", "fairseq", "eval"],
)
def test_the_weight_follows_the_scores_however_they_change(change):
    layer = linear()
    layer(torch.randn(2, 8))
    new = draw_scores(5, "other", (6, 8))
    change(layer, new)
    expected = layer.masked.frozen.weight * top_k_mask(new, 0.5)
    assert torch.equal(layer.weight.detach(), expected)


def test_the_weight_follows_scores_that_are_replaced():
    layer = linear()
    layer(torch.randn(2, 8))
    layer.masked.scores = nn.Parameter(draw_scores(5, "other", (6, 8)))
    expected = layer.masked.frozen.weight * top_k_mask(layer.masked.scores, 0.5)
    assert torch.equal(layer.weight.detach(), expected)


def test_training_goes_on_after_inference_mode():
    layer = linear()
    with torch.inference_mode():
        layer(torch.randn(2, 8))
    layer(torch.randn(2, 8)).sum().backward()
    assert layer.masked.scores.grad is not None


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_keeps_sharing_count_and_frozen_bits(dtype):
    layers = two_layers_of_one_frozen_weight()
    layers[0](torch.randn(1, 16))  # a cached fp32 weight must not survive
    original = layers[0].masked.frozen.weight.clone()
    layers.to(dtype)
    first, second = (layer.masked.frozen.weight for layer in layers)
    assert first is second
    assert torch.equal(first, original.to(dtype))
    for layer in layers:
        assert layer.weight.dtype == dtype
        assert int((layer.weight != 0).sum()) == 128
        layer.weight.sum().backward()
        assert layer.masked.scores.grad.dtype == torch.float32


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_a_mask_is_the_same_in_half_precision(dtype):
    """Rounded, many scores would tie at the threshold."""
    single = linear(out_features=64, in_features=64)
    half = copy.deepcopy(single).to(dtype)
    assert torch.equal(half.masked.scores, single.masked.scores)
    assert torch.equal(half.weight, single.weight.to(dtype))
    rounded = top_k_mask(single.masked.scores.to(dtype), 0.5)
    assert not torch.equal(half.masked.mask(), rounded)


def test_scores_that_were_saved_in_half_precision_give_one_mask():
    layer = linear(out_features=64, in_features=64)
    saved = {name: t.half() for name, t in layer.state_dict().items()}
    layer.load_state_dict(saved)
    expected = top_k_mask(saved["masked.scores"], 0.5)
    assert torch.equal(layer.masked.mask(), expected)


def test_sharing_survives_deepcopy_and_pickling():
    layers = two_layers_of_one_frozen_weight()
    layers[0](torch.randn(1, 16))  # a cached weight must not be copied
    buffer = io.BytesIO()
    torch.save(layers, buffer)
    buffer.seek(0)
    for clone in (copy.deepcopy(layers), torch.load(buffer, **unpickle_anything())):
        first, second = (layer.masked.frozen.weight for layer in clone)
        assert first is second
        assert torch.equal(clone[0].weight, layers[0].weight)


def unpickle_anything():
    return {"weights_only": False} if torch.__version__ >= "1.13" else {}


def test_keep_one_is_the_dense_layer():
    layer, dense = linear(keep=1.0), nn.Linear(8, 6, bias=False)
    dense.weight.data = layer.masked.frozen.weight.clone()
    x = torch.randn(3, 8)
    assert torch.equal(layer(x), dense(x))


def test_torchscript_is_refused_with_a_reason():
    with pytest.raises(TypeError, match="cannot be compiled by TorchScript"):
        torch.jit.script(linear())


@pytest.mark.parametrize("layer", [MaskedLinear, FrozenLinear])
def test_in_evaluation_a_weight_multiplies_like_a_stock_parameter(layer):
    masked = masked_weight((7, 5), keep=1.0)
    ours = layer(masked if layer is MaskedLinear else masked.frozen).eval()
    stock = nn.Linear(5, 7, bias=False)
    x = torch.randn(3, 4, 5).transpose(0, 1)  # as a decoder has it: not contiguous
    with torch.no_grad():
        stock.weight.copy_(ours.weight)
        assert torch.equal(ours(x), stock(x))
        assert ours.weight.requires_grad


def test_a_model_without_gradients_gives_none_to_the_weight():
    ours = MaskedLinear(masked_weight((7, 5))).eval()
    with torch.no_grad():
        ours(torch.ones(1, 5))  # the product is kept from here
    ours.requires_grad_(False)
    assert not ours(torch.ones(1, 5)).requires_grad
