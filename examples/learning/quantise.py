"""Round a dense model to few bits, to put it beside a ticket at equal bytes.

    python examples/learning/quantise.py CHECKPOINT --bits 8 -o rounded.pt

Every matrix is rounded to the nearest of 2^bits - 1 values, symmetric around zero, with
one 16-bit scale for each run of --group values of a row (0: the whole row); the rest
(norms, biases) stays at 32 bits. The largest weight of a run sets its scale, but not
with 2 bits: there a weight below 0.7 times the mean magnitude becomes 0, and the scale
is the mean of the others, as in ternary weight networks. The rounded model is written
as a checkpoint that stock fairseq loads, and the bytes that it would take are printed:
five ternary weights share a byte.
"""

from __future__ import annotations

import argparse
import sys
from typing import Dict, Tuple

from torch import Tensor

from onelayer_lottery.checkpoint.reading import load_checkpoint, save_checkpoint
from onelayer_lottery.errors import LotteryError


def rounded(matrix: Tensor, bits: int, group: int) -> Tuple[Tensor, int]:
    """A matrix after rounding, and the bytes of its codes and scales."""
    rows, columns = matrix.shape
    length = group if group and columns % group == 0 else columns
    runs = matrix.float().reshape(-1, length)
    magnitude, scales = runs.abs(), 2 * len(runs)  # bytes
    if bits == 2:
        large = magnitude > 0.7 * magnitude.mean(1, keepdim=True)
        total = (magnitude * large).sum(1, keepdim=True)
        scale = (total / large.sum(1, keepdim=True).clamp_min(1)).half().float()
        values = runs.sign() * large * scale
        return values.view(rows, columns), -(-matrix.numel() // 5) + scales
    largest = 2 ** (bits - 1) - 1
    scale = (magnitude.amax(1, keepdim=True) / largest).half().float()
    codes = (runs / scale.clamp_min(1e-12)).round().clamp(-largest, largest)
    values = (codes * scale).view(rows, columns)
    return values, matrix.numel() * bits // 8 + scales


def rounded_model(
    tensors: Dict[str, Tensor], bits: int, group: int
) -> Tuple[Dict[str, Tensor], int]:
    """A model after rounding, and its bytes; tied matrices are counted once."""
    result: Dict[str, Tensor] = {}
    total = 0
    seen: Dict[Tuple[int, ...], str] = {}
    for name, tensor in tensors.items():
        place = (tensor.untyped_storage().data_ptr(), *tensor.shape)
        if place in seen:
            result[name] = result[seen[place]]
            continue
        seen[place] = name
        if tensor.dim() == 2 and tensor.is_floating_point():
            result[name], size = rounded(tensor, bits, group)
        else:
            result[name], size = tensor, 4 * tensor.numel()
        total += size
    return result, total


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("checkpoint")
    parser.add_argument("--bits", type=int, choices=range(2, 9), required=True)
    parser.add_argument("--group", type=int, default=0)
    parser.add_argument("-o", "--out", required=True)
    parser.add_argument("--force", action="store_true", help="replace an existing file")
    options = parser.parse_args()
    try:
        state = load_checkpoint(options.checkpoint)
        state["model"], size = rounded_model(
            state["model"], options.bits, options.group
        )
        state["last_optimizer_state"] = None
        save_checkpoint(state, options.out, force=options.force)
    except LotteryError as error:
        sys.exit(str(error))
    print(f"{options.bits} bits: {size:,} bytes")


if __name__ == "__main__":
    main()
