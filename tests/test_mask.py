"""The mask and its gradient against the plain reference."""

import multiprocessing
from unittest import mock

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from onelayer_lottery.core import kernels, reference
from onelayer_lottery.core.mask import (
    _NEAR,
    kept_count,
    soften,
    straight_through,
    top_k_mask,
    write_masked,
)

BLOCK = 1 << 17  # values: several blocks of the compiled loops


@pytest.fixture(scope="module", autouse=True, params=["compiled", "torch"])
def loops(request):
    """Run all tests by the compiled loops and without them, for the same bits."""
    built = kernels.compiled
    if request.param == "compiled" and built is None:
        pytest.skip("the package was installed without a C compiler")
    if request.param == "torch":
        kernels.compiled = None
    yield
    kernels.compiled = built


DTYPES = [torch.float32, torch.float16, torch.bfloat16]


finite = st.floats(-1e4, 1e4, width=16)
few_values = st.sampled_from([0.0, -0.0, 0.5, -0.5, 1.0, -1.0])
shapes = hnp.array_shapes(min_dims=2, max_dims=2, max_side=12)
tensors = hnp.arrays(np.float32, shapes, elements=finite) | hnp.arrays(
    np.float32, shapes, elements=few_values
)


@settings(max_examples=200, deadline=None)
@given(tensors, st.floats(0.01, 1.0), st.sampled_from(DTYPES))
def test_the_mask_is_that_of_the_reference_ties_included(values, keep, dtype):
    scores = torch.from_numpy(values).to(dtype)
    expected = reference.top_k(scores, keep)
    assert torch.equal(top_k_mask(scores, keep), expected.bool())


def test_the_reference_is_numpys_stable_sort():
    scores = torch.tensor([[0.5, -0.5, 0.1], [-2.0, 0.5, 0.0]])
    order = np.argsort(-scores.abs().flatten().numpy(), kind="stable")
    assert order.tolist() == [3, 0, 1, 4, 2, 5]
    assert reference.top_k(scores, 0.5).tolist() == [[1, 1, 0], [1, 0, 0]]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("keep", [0.1, 0.5, 0.73, 1.0])
def test_exactly_k_are_kept_in_every_precision(dtype, keep):
    scores = torch.randn(512, 512, generator=torch.Generator().manual_seed(1))
    mask = top_k_mask(scores.to(dtype), keep)
    assert int(mask.sum()) == kept_count(512 * 512, keep) == round(keep * 512 * 512)


@pytest.mark.parametrize("dtype", DTYPES)
def test_of_constant_scores_the_lowest_indices_are_kept(dtype):
    mask = top_k_mask(torch.full((4, 5), -0.25, dtype=dtype), 0.3)
    assert mask.flatten().tolist() == [True] * 6 + [False] * 14


def test_the_count_is_exact_also_when_scores_are_not_numbers():
    scores = torch.tensor([[1.0, float("nan"), 3.0, float("inf")]])
    assert top_k_mask(scores, 0.5).tolist() == [[False, True, False, True]]


def test_a_soft_product_keeps_weights_in_part():
    scores = torch.tensor([[0.1, -0.2, 0.4, -1.0]])
    frozen = torch.tensor([[1.0, 2.0, -3.0, 4.0]])
    product = frozen * top_k_mask(scores, 0.5)
    soften(product, scores, frozen, 1.0)
    torch.testing.assert_close(product, frozen * torch.tensor([0.125, 0.25, 0.5, 1.0]))
    product = frozen * top_k_mask(scores, 0.5)
    soften(product, scores, frozen, 0.2)
    expected = frozen * torch.tensor([0.025, 0.05, 0.9, 1.0])
    torch.testing.assert_close(product, expected)


def assert_written(scores: torch.Tensor, keep: float, near=None):
    frozen = torch.randn(scores.shape) + 3
    out = torch.full_like(frozen, float("nan"))
    threshold = write_masked(scores, frozen, keep, out=out, hint=near)
    assert torch.equal(out, frozen * reference.top_k(scores, keep))
    return threshold


@settings(max_examples=200, deadline=None)
@given(tensors, st.floats(0.01, 1.0), st.data())
def test_the_product_is_that_of_the_mask_whatever_the_hint(values, keep, data):
    """The hint may be right, close, far, of other scores, or absurd."""
    scores = torch.from_numpy(values)
    found = assert_written(scores, keep)
    hints = st.integers(0, 2**31 - 1)
    if found is not None:
        hints |= st.integers(-2 * _NEAR, 2 * _NEAR).map(
            lambda off: min(max(found + off, 0), 2**31 - 1)
        )
    hint = data.draw(hints)
    threshold = assert_written(scores, keep, near=hint)
    if found is not None and abs(found - hint) < _NEAR:
        assert threshold == found


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("keep", [0.1, 0.5, 0.9])
def test_the_threshold_is_followed_through_updates_of_large_tensors(
    threads, keep, monkeypatch
):
    """In the end by the hint alone: selecting afresh is forbidden then."""
    if kernels.compiled is None:
        pytest.skip("torch takes no hint")
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    generator = torch.Generator().manual_seed(1)
    scores = torch.randn(3, BLOCK - 5, generator=generator)
    scores[:, ::7] = scores[0, 0]  # ties across blocks
    threshold = assert_written(scores, keep)
    monkeypatch.setattr("onelayer_lottery.core.mask._threshold", None)
    for _ in range(5):
        scores += 1e-3 * torch.randn(scores.shape, generator=generator)
        threshold = assert_written(scores, keep, near=threshold)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_other_precisions_are_written_too(dtype):
    scores = torch.randn(20, 30).to(dtype)
    frozen = torch.randn(20, 30).to(dtype)
    out = torch.empty_like(frozen)
    assert write_masked(scores, frozen, 0.3, out=out) is None
    assert torch.equal(out, frozen * top_k_mask(scores, 0.3))


def _write_in_a_fork(results):
    with mock.patch.object(torch, "get_num_threads", return_value=2):
        torch.set_num_threads(1)  # torch itself cannot have them here
        assert_written(torch.randn(3, BLOCK), 0.5)
    results.put("written")


def test_a_process_forked_after_masking_can_mask(monkeypatch):
    """Its parent's threads are not there to help it."""
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    assert_written(torch.randn(3, BLOCK), 0.5)
    context = multiprocessing.get_context("fork")
    results = context.Queue()
    child = context.Process(target=_write_in_a_fork, args=(results,), daemon=True)
    child.start()
    try:
        assert results.get(timeout=60) == "written"
    finally:
        child.kill()


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("size", [1, 77, BLOCK // 2 + 7])
def test_the_gradient_is_that_of_the_reference(size, threads, monkeypatch):
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    frozen, upstream, scores = torch.randn(3, 3, size).unbind()
    scores.view(-1)[:3] = torch.tensor([0.0, -0.0, 1.0])
    scores.requires_grad_()
    straight_through(scores, frozen, frozen).backward(upstream)
    found, scores.grad = scores.grad, None
    reference.effective_weight(scores, frozen, keep=0.5).backward(upstream)
    assert torch.equal(found, scores.grad)


def test_the_gradient_of_the_scores_is_grad_times_frozen_times_sign():
    scores = torch.tensor([[0.3, -0.2], [0.0, 0.1]], requires_grad=True)
    frozen = torch.tensor([[2.0, -3.0], [5.0, 7.0]])
    product = frozen * top_k_mask(scores, 0.5)
    upstream = torch.tensor([[1.0, 10.0], [100.0, 1000.0]])
    (straight_through(scores, frozen, product) * upstream).sum().backward()
    assert scores.grad.tolist() == [[2.0, 30.0], [500.0, 7000.0]]


def _added(weight, other, given):
    return ((weight + other) * given).sum()


def _seen_as_a_row(weight, other, given):
    return ((weight.view(-1) + other.view(-1)) * given.view(-1)).sum()


def _summed(weight, other, given):
    return weight.sum() + (other * given).sum()


def _stacked(weight, other, given):
    return (torch.cat([weight, other]) * torch.cat([given, given])).sum()


def _looked_up(weight, other, given):
    found = F.embedding(torch.tensor([0, 1, 1]), weight)
    return (F.linear(found, weight) @ torch.ones(2, 1)).sum() + (other * given).sum()


@pytest.mark.parametrize("signed", [False, True])
@pytest.mark.parametrize("use", [_added, _seen_as_a_row, _summed, _stacked, _looked_up])
def test_a_gradient_that_others_hold_is_not_overwritten(use, signed):
    scores, other, given, frozen = torch.randn(4, 2, 2).unbind()
    plain, plain_other = (t.clone().requires_grad_() for t in (frozen, other))
    use(plain, plain_other, given).backward()
    scores, other = scores.requires_grad_(), other.clone().requires_grad_()
    use(
        straight_through(scores, frozen, frozen, signed=signed), other, given
    ).backward()
    signs = 1 if signed else scores.detach().sign()
    torch.testing.assert_close(scores.grad, plain.grad * frozen * signs)
    torch.testing.assert_close(other.grad, plain_other.grad)


def test_a_gradient_that_the_caller_holds_is_not_overwritten():
    scores, frozen, given = torch.randn(3, 2, 2).unbind()
    before, held = given.clone(), []
    scores.requires_grad_()
    weight = straight_through(scores, frozen, frozen)
    weight.register_hook(held.append)
    weight.retain_grad()
    for gradient in (given, torch.stack([given, given])[0]):
        (weight * 1).backward(gradient, retain_graph=True)
        assert torch.equal(gradient, before)
    F.linear(torch.eye(2), weight).backward(given.t(), retain_graph=True)
    assert torch.equal(weight.grad, sum(held))
    assert torch.equal(held[-1], before)


def test_exactly_k_are_kept_of_scores_that_are_all_the_largest_nan():
    scores = torch.full((1000,), -1, dtype=torch.int32).view(torch.float32)
    out = torch.empty(1000)
    for hint in (None, 0x7FFFFFFF):
        write_masked(scores, torch.ones(1000), 0.5, out=out, hint=hint)
        assert torch.equal(out, top_k_mask(scores, 0.5).float())
        assert out.sum() == 500


def test_a_soft_mask_of_scores_of_0_is_a_number():
    scores = torch.tensor([0.0, 0.0, 1.0, 2.0])
    product = torch.ones(4)
    soften(product, scores, torch.ones(4), 0.5)
    assert torch.equal(product, torch.tensor([0.5, 0.5, 1.0, 1.0]))
