"""What a few updates do to a model, by width and by depth.

    python examples/learning/updates.py data/multi30k/data-bin

A learning rate is right for every width if an update has the same effect at each of
them. For every masked weight W this measures <dL/dW, W' - W>, where W' is the weight
after some updates of Adam and L the loss of sentences that these updates have not seen:
by how much they lower it, to first order. It prints the sums over the weights of a
kind, in bits for each symbol. What an update changes without a direction has no part in
them. For depth it measures how far the same updates move the last hidden state of the
decoder, all layers together.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import logging
import math
from collections import defaultdict
from typing import Any, Dict, List

import torch
from fairseq import options, tasks
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from torch import Tensor, nn

import onelayer_lottery.plugin  # noqa: F401  registers the architectures
from onelayer_lottery.core.mask import flip_signs
from onelayer_lottery.core.modules import MaskedEmbedding, MaskedLinear

RATE = 3e-4  # as early in the warm-up to 3e-3
KINDS = {
    "q, k": ("q_proj", "k_proj"),
    "v, out": ("v_proj", "out_proj"),
    "fc1": ("fc1",),
    "fc2": ("fc2",),
    "embeddings": ("embed_tokens", "output_projection"),
}
WIDTH_RULES = {
    "--mask-scores fan-in": ["--mask-scores", "fan-in"],
    "--mask-scores width": [],
}
DEPTH_RULES = {"--mask-gain 0.5": ["--mask-gain", "0.5"], "gains by depth": []}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("data", help="folder of the binarised data")
    parser.add_argument("--widths", type=int, nargs="*", default=[64, 128, 256, 512])
    parser.add_argument("--depths", type=int, nargs="*", default=[3, 6, 12])
    parser.add_argument("--updates", type=int, default=5, metavar="N")
    parser.add_argument("--sentences", type=int, default=64, help="of a batch")
    chosen = parser.parse_args()
    rows = [
        [
            f"{rule}, width {width}",
            *Model(chosen, flags, width=width).descent().values(),
        ]
        for rule, flags in WIDTH_RULES.items()
        for width in chosen.widths
    ]
    print(table(["", *KINDS], rows))
    rows = [
        [
            rule,
            *(Model(chosen, flags, layers=layers).moved() for layers in chosen.depths),
        ]
        for rule, flags in DEPTH_RULES.items()
    ]
    print(table(["", *(f"{n}+{n} layers" for n in chosen.depths)], rows))


class Model:
    """A masked model, and what a few updates change in it."""

    def __init__(
        self,
        chosen: argparse.Namespace,
        flags: List[str],
        *,
        width: int = 128,
        layers: int = 3,
    ):
        torch.manual_seed(1)
        shape = [
            flag
            for side in ("encoder", "decoder")
            for name, value in (
                ("embed-dim", width),
                ("ffn-embed-dim", 2 * width),
                ("layers", layers),
            )
            for flag in (f"--{side}-{name}", str(value))
        ]
        arch = ["--arch", "transformer_onelayer_random_tiny", "--mask-preset", "best"]
        words = [chosen.data, *arch, "--mask-anneal", "0", "--dropout", "0", *shape]
        words += ["--share-decoder-input-output-embed", *flags]
        logging.disable()
        with contextlib.redirect_stderr(io.StringIO()):
            parser = options.get_training_parser()
            cfg = convert_namespace_to_omegaconf(
                options.parse_args_and_arch(parser, words)
            )
            task = tasks.setup_task(cfg.task)
            task.load_dataset("train")
            self.model = task.build_model(cfg.model).train()
        data, size = task.dataset("train"), chosen.sentences
        self.batches = [
            data.collater([data[i] for i in range(start, start + size)])
            for start in range(0, (chosen.updates + 1) * size, size)
        ]

    def update(self) -> None:
        trained = [p for p in self.model.parameters() if p.requires_grad]
        adam = torch.optim.Adam(trained, lr=RATE, betas=(0.9, 0.98))
        for batch in self.batches[1:]:  # the first one is for measuring
            adam.zero_grad()
            self._loss(batch).backward()
            adam.step()

    @torch.no_grad()
    def moved(self) -> float:
        """The relative change of the decoder's last hidden state."""
        inputs = self.batches[0]["net_input"]
        before, _ = self.model(**inputs, features_only=True)
        with torch.enable_grad():
            self.update()
        after, _ = self.model(**inputs, features_only=True)
        return change(before, after)

    def descent(self) -> Dict[str, float]:
        """What the changes of the weights of each kind add to the loss."""
        self._loss(self.batches[0]).backward()
        before = {}
        for name, layer in self.model.named_modules():
            if isinstance(layer, (MaskedLinear, MaskedEmbedding)):
                weight, masked = layer.weight.detach().clone(), layer.masked
                # The scores have the gradient of the weight times this, 0 for padding.
                slope = flip_signs(masked.frozen.weight, masked.scores.detach())
                gradient = (masked.scores.grad / slope).nan_to_num(0, 0, 0)
                before.setdefault(masked, (name, weight, gradient))
        self.update()
        found: Dict[str, float] = defaultdict(float)
        for masked, (name, weight, gradient) in before.items():
            last = name.rpartition(".")[2]
            kind = next(kind for kind, layers in KINDS.items() if last in layers)
            with torch.no_grad():
                found[kind] += (gradient * (masked() - weight)).sum().item()
        return {kind: found[kind] / math.log(2) for kind in KINDS}

    def _loss(self, batch: Dict[str, Any]) -> Tensor:
        logits, _ = self.model(**batch["net_input"])
        return nn.functional.cross_entropy(
            logits.flatten(0, 1), batch["target"].flatten(), ignore_index=1
        )


def change(before: Tensor, after: Tensor) -> float:
    return ((after - before).norm() / before.norm()).item()


def table(heads: List[str], rows: List[List[Any]]) -> str:
    lines = [heads, ["---"] * len(heads)]
    lines += [[row[0], *(f"{value:.3f}" for value in row[1:])] for row in rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"


if __name__ == "__main__":
    main()
