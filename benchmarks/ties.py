"""How close the beam search of a line comes to a tie, which rounding decides.

    python benchmarks/ties.py model.ticket text.de LINE

For a line that engines translate differently. Its search is repeated in float64, where
rounding hardly matters, and shows the step at which the best candidate that is dropped
comes nearest to the worst that is kept, beside the distance of neighbouring float32
numbers of that size. Then each engine translates the line by itself, and again among
its neighbours in the text.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any, List, Tuple

import numpy as np
import torch

from onelayer_lottery import load_ticket
from onelayer_lottery.text.dictionary import EOS, PAD

BEAM = 5
LIMIT = 200  # symbols of a translation
AMONG = (1, 2, 4, 8, 16, 32, 64)  # lines that are translated together


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("ticket", type=Path)
    parser.add_argument("text", type=Path, help="raw text, one sentence a line")
    parser.add_argument("line", type=int, help="its number, from 1 on")
    options = parser.parse_args()
    lines = options.text.read_text(encoding="utf-8").rstrip("\n").split("\n")
    place = options.line - 1
    for name in ("ctranslate2", "fairseq"):
        engine = load_ticket(options.ticket, engine=name, threads=1)
        for count in AMONG:
            first = max(0, min(place - count // 2, len(lines) - count))
            rows = [engine.encode(line) for line in lines[first : first + count]]
            found = engine.search(rows, beam=BEAM)[place - first]
            print(
                f"{name}, {count} lines at a time: {len(found.symbols)} symbols,"
                f" score {found.score:.7f}"
            )
    gap, step, total, symbols = closest(engine, engine.encode(lines[place]))
    print(f"float64: {len(symbols)} symbols")
    print(
        f"closest at symbol {step}: sums of {total:.7f} and {total - gap:.7f} differ by"
        f" {gap:.1e}; float32 numbers there are {np.spacing(np.float32(-total)):.1e}"
        " apart"
    )


def closest(engine: Any, row: List[int]) -> Tuple[float, int, float, List[int]]:
    """Search as fairseq does, in float64.

    Return the smallest gap between a candidate that is kept and one that is dropped,
    after how many symbols it was, the sum of the kept one, and the translation.
    """
    model = engine.model.double()
    gaps, finished = [], []
    with torch.no_grad():
        read = model.encoder(torch.tensor([row]), torch.tensor([len(row)]))
        beams, sums = torch.full((1, 1), EOS), torch.zeros(1, dtype=torch.float64)
        for step in range(1, LIMIT + 2):
            one = torch.zeros(len(beams), dtype=torch.long)
            output = model.decoder(
                beams, encoder_out=model.encoder.reorder_encoder_out(read, one)
            )
            logs = model.get_normalized_probs(output, log_probs=True)[:, -1]
            logs[:, PAD] = -torch.inf
            if step == 1:
                logs[:, EOS] = -torch.inf
            if step > LIMIT:
                logs[:, :EOS] = logs[:, EOS + 1 :] = -torch.inf
            values, places = (sums[:, None] + logs).reshape(-1).topk(2 * BEAM + 1)
            parents, symbols = places // logs.shape[1], places % logs.shape[1]
            for rank in range(BEAM):
                if symbols[rank] == EOS:
                    text = beams[parents[rank]][1:].tolist()
                    finished.append((float(values[rank]) / step, text))
            if len(finished) >= BEAM:
                break
            going = (symbols != EOS).nonzero()[:, 0]
            kept, dropped = values[going[BEAM - 1]], values[going[BEAM]]
            gaps.append((float(kept - dropped), step, float(kept)))
            best = going[:BEAM]
            beams = torch.cat([beams[parents[best]], symbols[best, None]], dim=1)
            sums = values[best]
    return (*min(gaps), max(finished)[1])


if __name__ == "__main__":
    main()
