"""How far a few updates move the outputs of layers, by width and by depth.

    python examples/learning/updates.py data/multi30k/data-bin

A learning rate is right for every width if an update changes what a layer puts out by
the same fraction at each of them. For every masked weight W with the input x that it
had before, this measures |(W' - W) x| / |W x|, where W' is the weight after some
updates of Adam, and takes the mean over the weights of a kind. For depth it measures
how far the same updates move the last hidden state of the decoder, all layers together.
--after N measures updates of a model that has been trained for N: by then gradients
agree with each other, which they do not at the start.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import logging
from collections import defaultdict
from statistics import mean
from typing import Any, Dict, Iterable, Iterator, List, Tuple

import torch
from fairseq import options, tasks
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from fairseq.modules import MultiheadAttention
from torch import Tensor, nn

import onelayer_lottery.plugin  # noqa: F401  registers the architectures
from onelayer_lottery.core.modules import MaskedEmbedding, MaskedLinear

PEAK, WARMUP = 3e-3, 100  # a warm-up from a tenth of the preset's rate
KINDS = {
    "q, k": ("q_proj", "k_proj"),
    "v, out": ("v_proj", "out_proj"),
    "fc1": ("fc1",),
    "fc2": ("fc2",),
    "embeddings": ("embed_tokens",),
    "logits": ("output_projection",),
}
WIDTH_RULES = {
    "--mask-scores fan-in": ["--mask-scores", "fan-in"],
    "--mask-scores width": [],
}
DEPTH_RULES = {"--mask-gain 0.5": ["--mask-gain", "0.5"], "gains by depth": []}
Inputs = Dict[str, Tensor]  # by layer


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("data", help="folder of the binarised data")
    parser.add_argument("--widths", type=int, nargs="*", default=[64, 128, 256, 512])
    parser.add_argument("--depths", type=int, nargs="*", default=[3, 6, 12])
    parser.add_argument("--updates", type=int, default=5, metavar="N")
    parser.add_argument(
        "--after", type=int, default=0, metavar="N", help="train for N updates first"
    )
    parser.add_argument("--sentences", type=int, default=64, help="of a batch")
    chosen = parser.parse_args()
    rows = [
        [f"{rule}, width {width}", *by_kind(Model(chosen, flags, width=width))]
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
        for layer in self.model.modules():
            if isinstance(layer, MultiheadAttention):
                layer.skip_embed_dim_check = True  # or it never calls its projections
        data, size = task.dataset("train"), chosen.sentences
        count = chosen.after + chosen.updates + 1
        self.batches = [
            data.collater([data[i] for i in range(start, start + size)])
            for start in range(0, count * size, size)
        ]
        trained = [p for p in self.model.parameters() if p.requires_grad]
        self.adam = torch.optim.Adam(trained, betas=(0.9, 0.98))
        self.measured = range(chosen.after, count - 1)
        self.update(range(chosen.after))

    def update(self, numbers: Iterable[int]) -> None:
        for number in numbers:
            rate = PEAK * min(max(number + 1, WARMUP / 10) / WARMUP, 1)
            for group in self.adam.param_groups:
                group["lr"] = rate
            batch = self.batches[number + 1]  # the first one is for measuring
            logits, _ = self.model(**batch["net_input"])
            loss = nn.functional.cross_entropy(
                logits.flatten(0, 1), batch["target"].flatten(), ignore_index=1
            )
            self.adam.zero_grad()
            loss.backward()
            self.adam.step()

    @torch.no_grad()
    def moved(self) -> float:
        """The relative change of the decoder's last hidden state."""
        inputs = self.batches[0]["net_input"]
        before, _ = self.model(**inputs, features_only=True)
        with torch.enable_grad():
            self.update(self.measured)
        after, _ = self.model(**inputs, features_only=True)
        return change(before, after)

    @torch.no_grad()
    def changes(self) -> Iterator[Tuple[str, float]]:
        """The relative change of what each weight puts out, for the same input."""
        inputs = self._inputs()
        before = {name: self._output(name, x) for name, x in inputs.items()}
        with torch.enable_grad():
            self.update(self.measured)
        for name, x in inputs.items():
            yield name, change(before[name], self._output(name, x))

    def _inputs(self) -> Inputs:
        found: Inputs = {}
        hooks = []
        for name, layer in self.model.named_modules():
            if isinstance(layer, (MaskedLinear, MaskedEmbedding)):

                def record(_: Any, x: Tuple[Tensor, ...], name: str = name) -> None:
                    found[name] = x[0]

                hooks.append(layer.register_forward_pre_hook(record))
        self.model(**self.batches[0]["net_input"])
        for hook in hooks:
            hook.remove()
        return found

    def _output(self, name: str, x: Tensor) -> Tensor:
        return self.model.get_submodule(name)(x)


def by_kind(model: Model) -> List[float]:
    found = defaultdict(list)
    for name, moved in model.changes():
        for kind, layers in KINDS.items():
            if name.rpartition(".")[2] in layers:
                found[kind].append(moved)
    return [mean(found[kind]) for kind in KINDS]


def change(before: Tensor, after: Tensor) -> float:
    return ((after - before).norm() / before.norm()).item()


def table(heads: List[str], rows: List[List[Any]]) -> str:
    lines = [heads, ["---"] * len(heads)]
    lines += [[row[0], *(f"{value:.3f}" for value in row[1:])] for row in rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"


if __name__ == "__main__":
    main()
