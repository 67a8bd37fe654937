"""What each branch adds to the residual stream: at the start and after training.

For each layer, the variance of what self-attention, attention to the encoder and the
feed-forward part add, over the variance of the residual that they are added to,
averaged over a batch of validation data.
"""

import argparse
import collections
from pathlib import Path
from typing import Dict, List

import torch
from fairseq import checkpoint_utils

import onelayer_lottery.plugin  # noqa: F401  registers the architectures

BRANCHES = {
    "encoder": ("self-attention", "feed-forward"),
    "decoder": ("self-attention", "attention to the encoder", "feed-forward"),
}
Ratios = Dict[str, List[float]]  # by side and branch, one for each layer


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("data", type=Path, help="folder of the binarised data")
    parser.add_argument("--sentences", type=int, default=64)
    options = parser.parse_args()
    (trained,), cfg, task = checkpoint_utils.load_model_ensemble_and_task(
        [str(options.checkpoint)], arg_overrides={"data": str(options.data)}
    )
    task.load_dataset("valid")
    data = task.dataset("valid")
    batch = data.collater([data[i] for i in range(min(options.sentences, len(data)))])
    first = task.build_model(cfg.model)
    measured = {
        when: ratios(model.eval(), batch)
        for when, model in (("at the start", first), ("trained", trained))
    }
    layers = range(max(map(len, measured["trained"].values())))
    print("|  | " + " | ".join(f"layer {layer}" for layer in layers) + " |")
    print("|---" * (1 + len(layers)) + "|")
    for name in measured["trained"]:
        for when, found in measured.items():
            row = " | ".join(f"{ratio:.3f}" for ratio in found[name])
            print(f"| {name}, {when} | {row} |")


@torch.no_grad()
def ratios(model: torch.nn.Module, batch: dict) -> Ratios:
    """Variance of each branch over that of its residual, by layer."""
    found: Ratios = collections.defaultdict(list)
    for side, names in BRANCHES.items():
        for layer in getattr(model, side).layers:
            layer.residual_connection = _Recorder(side, names, found)
    model(**batch["net_input"])
    return dict(found)


class _Recorder:
    """Stands in for a layer's residual connection, and measures what is added."""

    def __init__(self, side: str, names: tuple, found: Ratios):
        self._names = iter(names)
        self._side, self._found = side, found

    def __call__(self, branch: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
        ratio = branch.var(-1).mean() / residual.var(-1).mean()
        self._found[f"{self._side} {next(self._names)}"].append(ratio.item())
        return residual + branch


if __name__ == "__main__":
    main()
