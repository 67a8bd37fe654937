"""Compare masks of the Triton kernels with those of the CPU, in Triton's interpreter.

test_selection_triton.py runs it in a Python that has triton.
"""

import itertools
import random

import torch

from onelayer_lottery.core.mask import kept_count, top_k_mask
from onelayer_lottery.core.selection_triton import TritonSelection

SHAPES = ((96, 64), (1, 2), (700, 64), (3, 5), (96, 64))  # the third takes two blocks


def values(what, shape, generator):
    scores = torch.randn(shape, generator=generator)
    if what == "tied":
        return (2 * scores).round() / 2
    if what == "constant":
        return torch.full_like(scores, -0.25)
    if what == "not finite":
        flat = scores.flatten()
        flat[::7], flat[1::7], flat[2::7], flat[3::7] = torch.inf, torch.nan, 0.0, -0.0
        return flat.view(shape)
    if what == "any bits":
        bits = torch.randint(-(2**31), 2**31, shape, generator=generator)
        return bits.to(torch.int32).view(torch.float32)
    return scores


def select(scores, keep):
    sizes = [s.numel() for s in scores]
    kept = [kept_count(size, keep) for size in sizes]
    return TritonSelection(sizes, kept, device=scores[0].device)


def main():
    generator = torch.Generator().manual_seed(1)
    kinds = ("random", "tied", "constant", "not finite", "any bits")
    dtypes = (torch.float32, torch.float16, torch.bfloat16, torch.float64)
    for what, dtype in itertools.product(kinds, dtypes):
        scores = [values(what, shape, generator).to(dtype) for shape in SHAPES]
        for keep in (0.3, 0.5, 1.0):
            found = select(scores, keep).masks(scores)
            for mask, each in zip(found, scores):
                assert torch.equal(mask, top_k_mask(each, keep)), (what, dtype, keep)
    # The same object again: other values in place, then other tensors, one transposed.
    scores = [values("random", shape, generator) for shape in SHAPES]
    selection = select(scores, 0.5)
    for change in (lambda s: s, lambda s: s.mul_(random.random()), torch.Tensor.clone):
        scores = [change(s) for s in scores]
        for mask, each in zip(selection.masks(scores), scores):
            assert torch.equal(mask, top_k_mask(each, 0.5))
    scores[0] = scores[0].view(64, 96).t()
    for mask, each in zip(selection.masks(scores), scores):
        assert torch.equal(mask, top_k_mask(each, 0.5))
    print("all equal")


if __name__ == "__main__":
    main()
