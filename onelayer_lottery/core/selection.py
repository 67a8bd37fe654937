"""Select the largest scores of many tensors on an accelerator, without waiting for it.

This is a radix select on bit patterns, from plain torch operations. All scores lie in
one buffer. For each 16 bits, highest first, a histogram for every tensor tells which
value the threshold has there, and how many scores are left to choose among those that
agree so far. Every step runs on the device and has a fixed size: nothing depends on a
value that the host would have to wait for.
"""

from __future__ import annotations

import math
from functools import reduce
from typing import Iterable, List, Sequence, Tuple

import torch
from torch import Tensor

# Floating point numbers of one sign order as their bit patterns do.
BITS = {
    torch.float16: torch.int16,
    torch.bfloat16: torch.int16,
    torch.float32: torch.int32,
    torch.float64: torch.int64,
}

_BINS = 1 << 16  # of a histogram: values of 16 bits
_FIRST_BINS = _BINS // 2  # of the first: the highest bit of a magnitude is 0
_GROUPS = 1 << 8  # a histogram is searched by groups of bins, then inside one
_WIDEST = 4096  # largest number of values in a row of the buffer
_SLABS = 4  # parts of the buffer, one at a time: temporary tensors have a part's size


def on_accelerator(tensor: Tensor) -> bool:
    """Whether a value of this tensor makes the host wait."""
    return tensor.device.type != "cpu"


class Selection:
    """Exact top-k masks for tensors of given sizes, all together.

    ``kept`` of each size must lie in [1, size]. Make it once and use it at every
    update: it holds the constant tensors.
    """

    def __init__(
        self, sizes: Sequence[int], kept: Sequence[int], *, device: torch.device
    ):
        def of_each(values: Iterable[int], lengths: Sequence[int]) -> Tensor:
            # Filled on the device: to copy a list would wait for it.
            pairs = zip(values, lengths)
            return torch.cat([torch.full((n,), v, device=device) for v, n in pairs])

        self.sizes = list(sizes)
        self.width = _widest_divisor(reduce(math.gcd, sizes))
        rows = [size // self.width for size in sizes]
        ones = [1] * len(rows)
        lasts = [sum(rows[: i + 1]) - 1 for i in range(len(rows))]
        self.slabs = _split(sizes)  # numbers of tensors
        self.slab_rows = [sum(rows[s.start : s.stop]) for s in self.slabs]
        # In ascending order the smallest that is kept has this rank; (tensors,)
        self.rank = of_each((s - k for s, k in zip(sizes, kept)), ones)
        self.last_row = of_each(lasts, ones)  # (tensors,)
        self.before_first_row = of_each([-1, *lasts], ones)  # (tensors,)
        self.tensor_of = of_each(range(len(rows)), rows)  # (rows,)
        # The bin of digit 0 in the histograms of a slab, which begin with the negative
        # digits, but for the first, which has none; (rows, 1)
        places = [n for s in self.slabs for n in range(len(s))]
        bins = [n * _BINS + _BINS // 2 for n in places]
        self.bin_of_0 = of_each(bins, rows).to(torch.int32).unsqueeze(1)
        first_bins = [n * _FIRST_BINS for n in places]
        self.first_bin_of_0 = of_each(first_bins, rows).to(torch.int32).unsqueeze(1)
        self.one = self.bin_of_0.new_ones(1)

    def masks(self, scores: Sequence[Tensor]) -> List[Tensor]:
        """Mark the largest |score| of each tensor; ties in order of index."""
        dtype, device = scores[0].dtype, self.rank.device
        magnitude = torch.empty(sum(self.sizes), dtype=dtype, device=device)
        for part, tensor in zip(magnitude.split(self.sizes), scores):
            torch.abs(tensor.detach().reshape(-1), out=part)
        table = magnitude.view(BITS[dtype]).view(-1, self.width)  # (rows, width)
        mask = self._mask(table, *self._thresholds(table)).view(-1)
        parts = mask.split(self.sizes)
        return [part.view(s.shape) for part, s in zip(parts, scores)]

    def _thresholds(self, table: Tensor) -> Tuple[Tensor, Tensor]:
        """The smallest magnitude that is kept of each tensor, and its rank in its ties.

        Digits have 16 bits. Highest first, each is found among the scores that agree
        with the threshold in the digits before.
        """
        digits = table.view(torch.int16).view(*table.shape, -1).unbind(-1)
        rank, threshold = self.rank, torch.zeros_like(self.rank)
        known: Tuple[Tensor, ...] = ()  # digits of the table and the threshold, in turn
        for digit in reversed(digits):
            bin_of_0 = self.bin_of_0 if known else self.first_bin_of_0
            count = _BINS if known else _FIRST_BINS
            bins = bin_of_0.new_zeros(len(self.sizes), count)
            of_slabs = bins.split([len(s) for s in self.slabs])
            rows = zip(*map(self._of_slabs, (digit, bin_of_0, *known)))
            for counts, (part, offset, *pairs) in zip(of_slabs, rows):
                index = part + offset
                # A score that does not agree adds 0 to the bin of its own digit. In
                # one bin for all of these, additions would wait for each other.
                agrees = self.one.expand(index.shape)
                if pairs:
                    agrees = torch.empty_like(index)
                    torch.eq(pairs[0], pairs[1], out=agrees)
                for theirs, ours in zip(pairs[2::2], pairs[3::2]):
                    agrees.mul_(theirs == ours)
                counts.view(-1).index_add_(0, index.view(-1), agrees.reshape(-1))
            bins = bins.view(len(self.sizes), _GROUPS, -1)
            value, rank = _search(bins, rank, signed=bool(known))
            threshold = torch.add(value, threshold, alpha=_BINS)
            signed = value.to(torch.int16)  # wraps, as the digits of the table do
            known = (*known, digit, self._by_row(signed).unsqueeze(1))
        return threshold.to(table.dtype), rank

    def _mask(self, table: Tensor, threshold: Tensor, rank: Tensor) -> Tensor:
        """Mark what is above the threshold, and its first ties.

        Of the ties, as many as ``rank`` are dropped, those of the highest index. Rows
        are kept with all of their ties or with none but for one row of each tensor.
        """
        lowest = self._by_row(threshold).unsqueeze(1)  # (rows, 1)
        slabs = zip(self._of_slabs(table), self._of_slabs(lowest))
        ties = torch.cat([(part == low).sum(1) for part, low in slabs])
        until = ties.cumsum(0)
        end = until.index_select(0, self.last_row)
        left = self._by_row(end - rank) - until + ties  # ties to keep from a row on
        some = left > 0
        mask = table > torch.add(lowest, some.unsqueeze(1), alpha=-1)
        # The last row with a tie to keep may have too many of them.
        last = torch.zeros_like(rank).index_add_(0, self.tensor_of, some.long())
        last = last + self.before_first_row
        row, limit = (t.index_select(0, last) for t in (table, left))
        least = threshold.unsqueeze(1)
        tied = row == least
        first = tied & (tied.cumsum(1) <= limit.unsqueeze(1))
        return mask.index_copy_(0, last, row > torch.add(least, first, alpha=-1))

    def _by_row(self, of_tensors: Tensor) -> Tensor:
        """Repeat the value of each tensor for all of its rows."""
        return of_tensors.index_select(0, self.tensor_of)

    def _of_slabs(self, of_rows: Tensor) -> Tuple[Tensor, ...]:
        return of_rows.split(self.slab_rows)


def _search(bins: Tensor, rank: Tensor, *, signed: bool) -> Tuple[Tensor, Tensor]:
    """The digit with the ``rank``-th smallest value, and the rank among its values.

    ``bins`` (tensors, groups, bins of a group) of signed digits begin with negative
    ones, which stand for the larger half.
    """
    half = bins.shape[1] // 2 if signed else 0
    group, rank = _ascend(bins.sum(2).roll(half, 1), rank)
    inside = (group + half) % bins.shape[1]
    chosen = bins.gather(1, inside.view(-1, 1, 1).expand(-1, 1, bins.shape[2]))
    value, rank = _ascend(chosen.squeeze(1), rank)
    return torch.add(value, group, alpha=bins.shape[2]), rank


def _ascend(counts: Tensor, rank: Tensor) -> Tuple[Tensor, Tensor]:
    """Find the count in which a rank lies, and the rank in it."""
    passed = counts.cumsum(1) <= rank.unsqueeze(1)
    return passed.sum(1), rank - (counts * passed).sum(1)


def _split(sizes: Sequence[int]) -> List[range]:
    """Divide tensors into slabs of about the same size."""
    total, done, slabs = sum(sizes), 0, [0] * len(sizes)
    for i, size in enumerate(sizes):
        slabs[i] = (2 * done + size) * _SLABS // (2 * total)  # by its middle
        done += size
    starts = [i for i in range(len(sizes)) if not i or slabs[i] != slabs[i - 1]]
    return [range(a, b) for a, b in zip(starts, [*starts[1:], len(sizes)])]


def _widest_divisor(size: int) -> int:
    return next(d for d in range(min(size, _WIDEST), 0, -1) if size % d == 0)
