"""Select the largest scores of many tensors on an accelerator, without waiting for it.

This is a radix select on bit patterns, from plain torch operations. All scores lie in
one buffer. A histogram for every tensor tells which value the threshold has in its 16
highest bits, and how many scores are left to choose among those that agree with it
there; a second one tells the same for the 16 lowest bits. Every step runs on the device
and has a fixed size: nothing depends on a value that the host would have to wait for.
"""

from __future__ import annotations

import math
import os
from functools import reduce
from typing import TYPE_CHECKING, Iterable, List, Sequence, Tuple, Union

import torch
from torch import Tensor

from onelayer_lottery.errors import LotteryError

if TYPE_CHECKING:
    from onelayer_lottery.core.selection_triton import TritonSelection

OPT_IN = "ONELAYER_LOTTERY_TRITON"  # set it to 1 to select with kernels in Triton

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


def on_accelerator(tensor: Tensor) -> bool:
    """Whether a value of this tensor makes the host wait."""
    return tensor.device.type != "cpu"


def selection_for(
    sizes: Sequence[int], kept: Sequence[int], *, device: torch.device
) -> Union[Selection, TritonSelection]:
    """A selection for tensors of these sizes: in Triton if the user asks for it."""
    if os.environ.get(OPT_IN) != "1" or device.type != "cuda":
        return Selection(sizes, kept, device=device)
    try:
        from onelayer_lottery.core.selection_triton import TritonSelection
    except ImportError as error:
        raise LotteryError(
            f"{OPT_IN}=1 needs the package triton ({error}); install it, or unset the"
            " variable to select with torch alone"
        ) from None
    return TritonSelection(sizes, kept, device=device)


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

        self.sizes, self.kept = list(sizes), list(kept)
        self.width = _widest_divisor(reduce(math.gcd, sizes))
        rows = [size // self.width for size in sizes]
        ones = [1] * len(rows)
        lasts = [sum(rows[: i + 1]) - 1 for i in range(len(rows))]
        # In ascending order the smallest that is kept has this rank; (tensors,)
        self.rank = of_each((s - k for s, k in zip(sizes, kept)), ones)
        self.last_row = of_each(lasts, ones)  # (tensors,)
        self.before_first_row = of_each([-1, *lasts], ones)  # (tensors,)
        self.tensor_of = of_each(range(len(rows)), rows)  # (rows,)
        # Where the first histogram of its tensor begins; (rows, 1)
        starts = range(0, _FIRST_BINS * len(rows), _FIRST_BINS)
        self.bin_of_0 = of_each(starts, rows).to(torch.int32).unsqueeze(1)
        # Regions of the second histogram: between them is room for what does not agree.
        self.region = of_each(range(1, 2 * len(rows), 2), ones)  # (tensors,)
        self.one = self.bin_of_0.new_ones(1)

    def masks(self, scores: Sequence[Tensor]) -> List[Tensor]:
        """Mark the largest |score| of each tensor; ties in order of index."""
        dtype, device = scores[0].dtype, self.rank.device
        if dtype == torch.float64:
            return [_by_sort(s, k) for s, k in zip(scores, self.kept)]
        magnitude = torch.empty(sum(self.sizes), dtype=dtype, device=device)
        for part, tensor in zip(magnitude.split(self.sizes), scores):
            torch.abs(tensor.detach().reshape(-1), out=part)
        table = magnitude.view(BITS[dtype]).view(-1, self.width)  # (rows, width)
        threshold, rank = self._highest_digit(table)
        if dtype == torch.float32:
            threshold, rank = self._lowest_digit(table, threshold, rank)
        mask = self._mask(table, threshold.to(table.dtype), rank).view(-1)
        parts = mask.split(self.sizes)
        return [part.view(s.shape) for part, s in zip(parts, scores)]

    def _highest_digit(self, table: Tensor) -> Tuple[Tensor, Tensor]:
        """The highest 16 bits of the smallest magnitude that is kept of each tensor.

        Also its rank among the scores that agree with it there.
        """
        bins = self.bin_of_0.new_zeros(len(self.sizes), _FIRST_BINS)
        # In halves: an index takes as much memory as a score.
        for digit, start in zip(_high_half(table).chunk(2), self.bin_of_0.chunk(2)):
            self._count(bins, digit + start)
        return _search(bins, self.rank)

    def _lowest_digit(
        self, table: Tensor, digit: Tensor, rank: Tensor
    ) -> Tuple[Tensor, Tensor]:
        """The smallest that is kept of each tensor, and its rank among its ties.

        The table is written over. The higher half of a score becomes the number of a
        region: that of its tensor if it agrees, the one before or behind it if it is
        below or above. The order stays, and the scores are indices of bins: those that
        do not agree are spread over many bins, where they do not wait for each other.
        """
        high = _high_half(table)
        near = self._by_row(digit).to(torch.int16).unsqueeze(1)
        above = near + (near < _FIRST_BINS - 1)  # no digit is higher
        zone = torch.clamp(high, near - 1, above)
        shift = self._by_row(self.region - digit).to(torch.int16).unsqueeze(1)
        torch.add(zone, shift, out=high)
        bins = self.bin_of_0.new_zeros(2 * len(self.sizes) + 1, _BINS)
        self._count(bins, table)
        own = bins.narrow(0, 1, 2 * len(self.sizes)).view(-1, 2, _BINS).select(1, 0)
        value, rank = _search(own, rank)
        return torch.add(value, self.region, alpha=_BINS), rank

    def _count(self, bins: Tensor, index: Tensor) -> None:
        bins.view(-1).index_add_(0, index.view(-1), self.one.expand(index.numel()))

    def _mask(self, table: Tensor, threshold: Tensor, rank: Tensor) -> Tensor:
        """Mark what is above the threshold, and its first ties.

        Of the ties, as many as ``rank`` are dropped, those of the highest index. Rows
        are kept with all of their ties or with none but for one row of each tensor.
        """
        lowest = self._by_row(threshold).unsqueeze(1)  # (rows, 1)
        ties = (table == lowest).sum(1)
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


def _by_sort(scores: Tensor, kept: int) -> Tensor:
    """The same for numbers of 64 bits, which nobody trains with."""
    magnitude = scores.detach().abs().view(BITS[scores.dtype]).flatten()
    order = magnitude.sort(stable=True, descending=True).indices
    mask = torch.zeros_like(magnitude, dtype=torch.bool)
    return mask.index_fill_(0, order.narrow(0, 0, kept), True).view(scores.shape)


def _high_half(table: Tensor) -> Tensor:
    """A view of the highest 16 bits of every number."""
    return table.view(torch.int16).view(*table.shape, -1).select(2, -1)


def _search(bins: Tensor, rank: Tensor) -> Tuple[Tensor, Tensor]:
    """The digit with the ``rank``-th smallest value, and the rank among its values."""
    bins = bins.view(len(bins), _GROUPS, -1)  # (tensors, groups, bins of a group)
    group, rank = ascend(bins.sum(2), rank)
    inside = group.view(-1, 1, 1).expand(-1, 1, bins.shape[2])
    value, rank = ascend(bins.gather(1, inside).squeeze(1), rank)
    return torch.add(value, group, alpha=bins.shape[2]), rank


def ascend(counts: Tensor, rank: Tensor) -> Tuple[Tensor, Tensor]:
    """Find the count in which a rank lies, and the rank in it."""
    passed = counts.cumsum(1) <= rank.unsqueeze(1)
    return passed.sum(1), rank - (counts * passed).sum(1)


def _widest_divisor(size: int) -> int:
    return next(d for d in range(min(size, _WIDEST), 0, -1) if size % d == 0)
