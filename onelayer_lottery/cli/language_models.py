"""The commands score and continue of onelayer-lottery, which run language models."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Iterator, List

from onelayer_lottery.cli.options import say
from onelayer_lottery.cli.text import (
    add_engine,
    answer,
    engine_options,
    input_groups,
)
from onelayer_lottery.errors import LotteryError


def add_commands(commands) -> None:
    """Add score and continue to the command line's parser."""
    _add_score(commands)
    _add_continue(commands)


def _add_score(commands) -> None:
    parser = commands.add_parser(
        "score",
        help="measure how well a language model predicts text from stdin",
        description="For each line print its bits, its symbols (its end is one) and its"
        " bits per symbol, separated by tabs. The last line has the total, with bits"
        " per character (the end of a line is one) and perplexity. The numbers are"
        " those of fairseq-eval-lm on the same lines.",
    )
    parser.add_argument("ticket", type=Path, metavar="TICKET")
    parser.add_argument("--total", action="store_true", help="print only the total")
    add_engine(parser)
    parser.set_defaults(run=_score, error=parser.error)


def _score(options: argparse.Namespace) -> None:
    from onelayer_lottery.inference.engines import load_language_model

    model = load_language_model(options.ticket, warn=say, **engine_options(options))

    def rows() -> Iterator[str]:
        bits, symbols, characters, count = 0.0, 0, 0, 0
        lines = (line for group in input_groups() for line in group)
        for line in model.score(lines, warn=say):
            bits += line.bits
            symbols += line.symbols
            characters += line.characters
            count += 1
            if not options.total:
                per_symbol = line.bits / line.symbols
                yield f"{line.bits:.4f}\t{line.symbols}\t{per_symbol:.4f}"
        if not count:
            raise LotteryError("there is no line to score on standard input")
        yield (
            f"total: {count:,} lines, {symbols:,} symbols, {characters:,} characters;"
            f" {bits / symbols:.4f} bits per symbol, {bits / characters:.4f} bits per"
            f" character, perplexity {2 ** min(bits / symbols, 1000):.2f}"
        )

    answer(rows())


def _add_continue(commands) -> None:
    parser = commands.add_parser(
        "continue",
        help="let a language model continue a prompt, or each line of stdin",
        description="Print the prompt and what the model says next, symbol by symbol"
        " drawn from its probabilities. The same seed gives the same text.",
    )
    parser.add_argument("ticket", type=Path, metavar="TICKET")
    parser.add_argument(
        "--prompt", metavar="TEXT", help="what to continue (default: lines of stdin)"
    )
    parser.add_argument(
        "--symbols",
        type=int,
        default=200,
        metavar="N",
        help="at most so many symbols (default: 200)",
    )
    parser.add_argument(
        "--samples",
        type=int,
        default=1,
        metavar="N",
        help="continue each prompt so many times; a line --- separates them",
    )
    parser.add_argument(
        "--sampling-topk",
        type=int,
        default=0,
        metavar="K",
        help="draw from the K most probable symbols; 1 always takes the most probable"
        " one (default: from all)",
    )
    parser.add_argument(
        "--sampling-topp",
        type=float,
        default=1.0,
        metavar="P",
        help="draw from the most probable symbols that together have the probability P",
    )
    parser.add_argument(
        "--temperature",
        type=float,
        default=1.0,
        metavar="T",
        help="below 1 probable symbols become more probable (default: 1)",
    )
    parser.add_argument("--seed", type=int, default=1, metavar="N")
    add_engine(parser)
    parser.set_defaults(run=_continue, error=parser.error)


def _continue(options: argparse.Namespace) -> None:
    for flag, fits, expected in (
        ("symbols", options.symbols >= 1, "a number from 1 on"),
        ("samples", options.samples >= 1, "a number from 1 on"),
        ("sampling-topk", options.sampling_topk >= 0, "0 or more"),
        ("sampling-topp", 0 < options.sampling_topp <= 1, "a probability in (0, 1]"),
        ("temperature", 0 < options.temperature < 1e6, "a number above 0"),
        ("seed", 0 <= options.seed < 1 << 63, "a number from 0 on"),
    ):
        if not fits:
            value = getattr(options, flag.replace("-", "_"))
            options.error(f"--{flag} {value}: give {expected}")
    if options.prompt is not None and not options.prompt.strip():
        options.error("--prompt is empty: give it some words")
    from onelayer_lottery.inference.engines import load_language_model
    from onelayer_lottery.runtime.language_model import Sampling

    model = load_language_model(options.ticket, warn=say, **engine_options(options))
    sampling = Sampling(
        options.sampling_topk, options.sampling_topp, options.temperature
    )

    def prompts() -> Iterator[List[str]]:
        return iter([[options.prompt]]) if options.prompt else input_groups()

    def texts() -> Iterator[str]:
        first = True
        for group in prompts():
            for prompt in group:
                for sample in range(options.samples):
                    if not first:
                        yield "---"
                    first = False
                    yield model.continue_text(
                        prompt,
                        symbols=options.symbols,
                        sampling=sampling,
                        seed=options.seed + sample,
                        warn=say,
                    )

    answer(texts())
