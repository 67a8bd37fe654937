"""The mask against a stable sort, and the gradient that passes it."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from onelayer_lottery.mask import (
    _select_on_cpu,
    _select_on_device,
    kept_count,
    straight_through,
    top_k_mask,
)

DTYPES = [torch.float32, torch.float16, torch.bfloat16]


def mask_by_stable_sort(scores: torch.Tensor, keep: float) -> torch.Tensor:
    magnitude = scores.double().abs().flatten().numpy()
    order = np.argsort(-magnitude, kind="stable")
    mask = torch.zeros(scores.numel(), dtype=torch.bool)
    mask[torch.from_numpy(order[: round(keep * scores.numel())].copy())] = True
    return mask.view(scores.shape)


finite = st.floats(-1e4, 1e4, width=16)
few_values = st.sampled_from([0.0, -0.0, 0.5, -0.5, 1.0, -1.0])
shapes = hnp.array_shapes(min_dims=2, max_dims=2, max_side=12)
tensors = hnp.arrays(np.float32, shapes, elements=finite) | hnp.arrays(
    np.float32, shapes, elements=few_values
)


@settings(max_examples=400, deadline=None)
@given(tensors, st.floats(0.01, 1.0), st.sampled_from(DTYPES))
def test_mask_equals_a_stable_sort_ties_included(values, keep, dtype):
    scores = torch.from_numpy(values).to(dtype)
    assert torch.equal(top_k_mask(scores, keep), mask_by_stable_sort(scores, keep))


@settings(max_examples=200, deadline=None)
@given(tensors, st.data())
def test_selection_without_the_host_equals_the_one_on_the_cpu(values, data):
    magnitude = torch.from_numpy(values).abs().view(torch.int32).flatten()
    if magnitude.numel() < 2:
        return
    kept = data.draw(st.integers(1, magnitude.numel() - 1))
    on_cpu, on_device = (
        f(magnitude, kept) for f in (_select_on_cpu, _select_on_device)
    )
    assert torch.equal(on_cpu, on_device)


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


def test_the_gradient_of_the_scores_is_grad_times_frozen_times_sign():
    scores = torch.tensor([[0.3, -0.2], [0.0, 0.1]], requires_grad=True)
    frozen = torch.tensor([[2.0, -3.0], [5.0, 7.0]])
    product = frozen * top_k_mask(scores, 0.5)
    upstream = torch.tensor([[1.0, 10.0], [100.0, 1000.0]])
    (straight_through(scores, frozen, product) * upstream).sum().backward()
    assert scores.grad.tolist() == [[2.0, 30.0], [500.0, 7000.0]]
