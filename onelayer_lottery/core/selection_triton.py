"""Select the largest scores with three kernels in Triton, without copying the scores.

This is a radix select, as in ``selection.py``, with less than half of its memory
traffic. Each pass reads the scores of all tensors where they are, and counts the values
of a digit among those that agree with the threshold so far. One more pass counts the
ties in every block, and the last one writes the masks.
"""

from __future__ import annotations

from itertools import accumulate
from typing import Any, List, Sequence, Tuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from onelayer_lottery.core.selection import Selection, ascend

# Shift and width of each digit of a magnitude, by the size of a score in bytes.
_DIGITS = {4: ((20, 11), (10, 10), (0, 10)), 2: ((7, 8), (0, 7))}
_STEP = 2048  # scores that a program reads at once; as many as a digit has values
_STEPS = 16  # how often it does: a block


class TritonSelection:
    """Exact top-k masks for tensors of given sizes, as ``Selection`` makes them."""

    def __init__(
        self, sizes: Sequence[int], kept: Sequence[int], *, device: torch.device
    ):
        def table(values: Sequence[int], dtype: torch.dtype = torch.int64) -> Tensor:
            return torch.tensor(values, dtype=dtype, device=device)

        self.sizes, self.kept, self.device = list(sizes), list(kept), device
        block = _STEP * _STEPS
        blocks = [-(-size // block) for size in sizes]
        owners = [t for t, count in enumerate(blocks) for _ in range(count)]
        ends = list(accumulate(blocks))
        self.blocks = len(owners)
        self.owner = table(owners)  # the tensor of each block
        # Where a block begins in its tensor.
        self.start = table([b * block for count in blocks for b in range(count)])
        self.size = table(self.sizes)
        self.offset = table([0, *accumulate(self.sizes)][:-1])  # of a mask in all masks
        self.last_block = table([end - 1 for end in ends])
        self.rank = table([s - k for s, k in zip(sizes, kept)])
        self._addresses: Tuple[List[int], Tensor] = ([], self.rank)

    def masks(self, scores: Sequence[Tensor]) -> List[Tensor]:
        """Mark the largest |score| of each tensor; ties in order of index."""
        dtype = scores[0].dtype
        if dtype == torch.float64:
            return Selection(self.sizes, self.kept, device=self.device).masks(scores)
        scores = [s.detach().contiguous() for s in scores]  # alive until the launches
        where = (self._pointers(scores), self.size, self.owner, self.start)
        half = dtype.itemsize == 2
        rank, threshold = self.rank, torch.zeros_like(self.rank)
        for shift, width in _DIGITS[dtype.itemsize]:
            bins = torch.zeros(
                (len(scores), 1 << width), dtype=torch.int32, device=self.device
            )
            self._launch(_count_digits, *where, threshold, bins, shift, width, half)
            digit, rank = ascend(bins, rank)
            threshold = torch.add(digit, threshold, alpha=1 << width)
        ties = torch.empty(self.blocks, dtype=torch.int64, device=self.device)
        self._launch(_count_ties, *where, threshold, ties, half)
        # Of the ties of a tensor, as many as ``rank`` are dropped, the last ones.
        until = ties.cumsum(0)
        keep = until.index_select(0, self.last_block) - rank
        left = keep.index_select(0, self.owner) - until + ties
        mask = torch.empty(sum(self.sizes), dtype=torch.uint8, device=self.device)
        self._launch(_write_masks, *where, threshold, left, self.offset, mask, half)
        parts = mask.view(torch.bool).split(self.sizes)
        return [part.view(s.shape) for part, s in zip(parts, scores)]

    def _pointers(self, scores: Sequence[Tensor]) -> Tensor:
        """The addresses of the scores on the device, copied there when they change."""
        addresses = [s.data_ptr() for s in scores]
        if addresses != self._addresses[0]:
            found = torch.tensor(addresses, dtype=torch.int64, device=self.device)
            self._addresses = (addresses, found)
        return self._addresses[1]

    def _launch(self, kernel: Any, *arguments: Any) -> None:
        with torch.cuda.device_of(self.rank):
            kernel[(self.blocks,)](*arguments, _STEP, _STEPS)


@triton.jit
def _magnitudes(scores, size, first, HALF: tl.constexpr, STEP: tl.constexpr):
    """The bits of |score| from an index on, and which of them exist."""
    index = first + tl.arange(0, STEP)
    inside = index < size
    if HALF:
        short = tl.load(scores.to(tl.pointer_type(tl.int16)) + index, inside, other=0)
        bits = short.to(tl.int32) & 0x7FFF
    else:
        whole = tl.load(scores.to(tl.pointer_type(tl.int32)) + index, inside, other=0)
        bits = whole & 0x7FFFFFFF
    return bits, inside


@triton.jit
def _count_digits(
    pointers,
    sizes,
    owners,
    starts,
    thresholds,
    bins,
    SHIFT: tl.constexpr,
    WIDTH: tl.constexpr,
    HALF: tl.constexpr,
    STEP: tl.constexpr,
    STEPS: tl.constexpr,
):
    """Count the values of a digit where the higher digits are the threshold's."""
    block = tl.program_id(0)
    owner = tl.load(owners + block)
    scores, size = tl.load(pointers + owner), tl.load(sizes + owner)
    first, known = tl.load(starts + block), tl.load(thresholds + owner).to(tl.int32)
    values: tl.constexpr = 1 << WIDTH
    counts = tl.zeros((values,), tl.int32)
    others = 0
    for step in range(STEPS):
        bits, inside = _magnitudes(scores, size, first + step * STEP, HALF, STEP)
        agrees = inside & ((bits >> (SHIFT + WIDTH)) == known)
        digit = tl.where(agrees, (bits >> SHIFT) & (values - 1), 0)
        counts += tl.histogram(digit, values)
        others += STEP - tl.sum(agrees.to(tl.int32))
    value = tl.arange(0, values)
    counts -= tl.where(value == 0, others, 0)
    tl.atomic_add(bins + owner * values + value, counts, mask=counts > 0)


@triton.jit
def _count_ties(
    pointers,
    sizes,
    owners,
    starts,
    thresholds,
    ties,
    HALF: tl.constexpr,
    STEP: tl.constexpr,
    STEPS: tl.constexpr,
):
    """Count the scores of each block that are equal to the threshold."""
    block = tl.program_id(0)
    owner = tl.load(owners + block)
    scores, size = tl.load(pointers + owner), tl.load(sizes + owner)
    first, least = tl.load(starts + block), tl.load(thresholds + owner).to(tl.int32)
    found = 0
    for step in range(STEPS):
        bits, inside = _magnitudes(scores, size, first + step * STEP, HALF, STEP)
        found += tl.sum((inside & (bits == least)).to(tl.int32))
    tl.store(ties + block, found)


@triton.jit
def _write_masks(
    pointers,
    sizes,
    owners,
    starts,
    thresholds,
    lefts,
    offsets,
    masks,
    HALF: tl.constexpr,
    STEP: tl.constexpr,
    STEPS: tl.constexpr,
):
    """Mark what is above the threshold, and the first ties, as many as are left."""
    block = tl.program_id(0)
    owner = tl.load(owners + block)
    scores, size = tl.load(pointers + owner), tl.load(sizes + owner)
    first, least = tl.load(starts + block), tl.load(thresholds + owner).to(tl.int32)
    left = tl.load(lefts + block)
    masks += tl.load(offsets + owner)
    for step in range(STEPS):
        begin = first + step * STEP
        bits, inside = _magnitudes(scores, size, begin, HALF, STEP)
        tied = inside & (bits == least)
        order = tl.cumsum(tied.to(tl.int32), 0)
        keep = (bits > least) | (tied & (order <= left))
        tl.store(masks + begin + tl.arange(0, STEP), keep.to(tl.uint8), mask=inside)
        left -= tl.sum(tied.to(tl.int32))
