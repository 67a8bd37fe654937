"""Masks on a GPU: exactness and speed there, and a count of their cost anywhere.

    python benchmarks/gpu.py             on a GPU: tests, then a table with verdicts
    python benchmarks/gpu.py --count     kernels, bytes and peak memory; needs no GPU
    python benchmarks/gpu.py --device cpu --quick    try the script without a GPU

The first writes gpu.json, which is worth sending back: nobody has run it yet.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
from contextlib import nullcontext
from pathlib import Path
from statistics import median
from typing import Any, Callable, ContextManager, Dict, List, Sequence
from unittest.mock import patch

import torch
from counting import Cost, counted
from fairseq.optim import build_optimizer
from fairseq.tasks.translation import TranslationTask
from fairseq.utils import apply_to_sample
from measure import HEADS, Row, hush_fairseq, interleave, machine, markdown, ratios, say
from models import (
    Size,
    batch,
    build_trainer,
    configuration,
    dictionary,
    named_size,
)
from rows import QUICK
from torch import Tensor

from onelayer_lottery.core.mask import kept_count, top_k_mask
from onelayer_lottery.core.methods import METHODS, MaskMethod
from onelayer_lottery.core.modules import MaskedWeight
from onelayer_lottery.core.selection import OPT_IN, Selection, selection_for
from onelayer_lottery.files import whole_file

KEEP = 0.5
TOKENS = 4096
ARCHS = ("small", "wide", "base")  # whose cost is counted
KINDS = ("dense", "ours", "kthvalue", "sort")
HAS_TRITON = importlib.util.find_spec("triton") is not None
# GB/s of memory, from the makers' data sheets; a launch takes about 5 microseconds.
BANDWIDTH = {"V100": 900, "A100": 1555}
LAUNCH = 5e-6


def together(scores: List[Tensor], make: Callable = Selection) -> Any:
    sizes = [s.numel() for s in scores]
    kept = [kept_count(size, KEEP) for size in sizes]
    return make(sizes, kept, device=scores[0].device)


def in_triton(kind: str) -> ContextManager:
    """Select with the kernels in Triton if that is the kind."""
    return patch.dict(os.environ, {OPT_IN: "1"}) if kind == "triton" else nullcontext()


def by_kthvalue(score: Tensor) -> Tensor:
    magnitude = score.abs().flatten()
    kept = kept_count(magnitude.numel(), KEEP)
    threshold = magnitude.kthvalue(magnitude.numel() - kept + 1).values
    above, tied = magnitude > threshold, magnitude == threshold
    return (above | (tied & (tied.cumsum(0) <= kept - above.sum()))).view(score.shape)


def by_topk(score: Tensor) -> Tensor:
    magnitude = score.abs().flatten()
    kept = kept_count(magnitude.numel(), KEEP)
    indices = magnitude.topk(kept, sorted=False).indices  # ties in any order
    mask = torch.zeros_like(magnitude, dtype=torch.bool)
    return mask.index_fill_(0, indices, True).view(score.shape)


def by_sort(score: Tensor) -> Tensor:
    magnitude = score.abs().flatten()
    kept = kept_count(magnitude.numel(), KEEP)
    order = magnitude.sort(stable=True, descending=True).indices
    mask = torch.zeros_like(magnitude, dtype=torch.bool)
    return mask.index_fill_(0, order.narrow(0, 0, kept), True).view(score.shape)


def one_by_one(select: Callable[[Tensor], Tensor]) -> Callable:
    return lambda scores: [select(score) for score in scores]


OTHERS = {
    "kthvalue": one_by_one(by_kthvalue),
    "topk": one_by_one(by_topk),
    "sort": one_by_one(by_sort),
}


class ByKthvalue(MaskMethod):
    def mask(self, weight: MaskedWeight) -> Tensor:
        return by_kthvalue(weight.scores)


class BySort(MaskMethod):
    def mask(self, weight: MaskedWeight) -> Tensor:
        return by_sort(weight.scores)


def mask_shapes(size: Size) -> List[tuple]:
    """Shapes of all masks of a Transformer, tied embeddings once."""
    width, ffn, _, layers = size.shape
    square, up, down = (width, width), (ffn, width), (width, ffn)
    layer = [*[square] * 4, up, down, *[square] * 8, up, down]
    return [*layer * layers, *((symbols, width) for symbols in size.vocabulary)]


def count_costs(name: str) -> Dict[str, Cost]:
    """The cost of selecting all masks once, on fake tensors of a CUDA device."""
    from torch._subclasses.fake_tensor import FakeTensorMode  # not in torch 1.12

    with FakeTensorMode():
        scores = [torch.empty(s, device="cuda") for s in mask_shapes(named_size(name))]
        # Made once for a training, so not counted.
        selections = {"ours": together(scores).masks, **OTHERS}
        return {kind: counted(run, scores) for kind, run in selections.items()}


def count_triton(name: str) -> Cost:
    """The same for the kernels in Triton, from what each of them reads and writes."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    from onelayer_lottery.core import selection_triton

    class Counting(selection_triton.TritonSelection):
        launches = moved = 0

        def _pointers(self, scores: Sequence[Tensor]) -> Tensor:
            return self.rank  # a fake tensor has no address

        def _launch(self, kernel: Any, *arguments: Any) -> None:
            self.launches += 1
            self.moved += sum(self.sizes) * 4
            if kernel is selection_triton._write_masks:
                self.moved += sum(self.sizes)
            if kernel is selection_triton._count_digits:
                # At most: every program reads and writes each count of its tensor.
                bins = arguments[5]
                self.moved += self.blocks * bins.shape[1] * 2 * bins.element_size()

    with FakeTensorMode():
        scores = [torch.empty(s, device="cuda") for s in mask_shapes(named_size(name))]
        selection = together(scores, Counting)
        cost = counted(selection.masks, scores)
    return cost._replace(
        kernels=cost.kernels + selection.launches, moved=cost.moved + selection.moved
    )


def count_dense_step(name: str) -> Cost:
    """The cost of a training step of the stock model, on fake tensors as well."""
    from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

    size = named_size(name)
    config = configuration("dense", size, ["--cpu"])
    task = TranslationTask(config.task, *map(dictionary, size.vocabulary))
    sample = batch(TOKENS, size)
    criterion = task.build_criterion(config.criterion)

    def fake(tensor: Tensor) -> Tensor:
        return torch.empty(tensor.shape, dtype=tensor.dtype)

    def step(_: List[Tensor]) -> None:
        loss, *_ = criterion(model, sample)
        optimizer.backward(loss)
        optimizer.clip_grad_norm(0.5)
        optimizer.step()

    # fairseq asks whether there is padding, which a fake tensor does not know.
    no = patch.object(FakeTensor, "__bool__", lambda self: False, create=True)
    shape = patch.object(torch.onnx.operators, "shape_as_tensor", lambda t: t.shape)
    with FakeTensorMode(), no, shape:
        sample = apply_to_sample(fake, sample)
        model = task.build_model(config.model)
        optimizer = build_optimizer(config.optimizer, list(model.parameters()))
        step([])  # the optimizer allocates its state
        return counted(step, [])


def count_table(costs_of: Callable[[str], Dict[str, Cost]] = count_costs) -> str:
    heads = ["arch", "selection", "masks", "kernels", "bytes / scores", "peak / scores"]
    heads += [f"{name}, ms" for name in BANDWIDTH]
    lines = []
    for name in ARCHS:
        masks = mask_shapes(named_size(name))
        for kind, cost in costs_of(name).items():
            times = [
                f"{1e3 * (cost.moved / (speed * 1e9) + cost.kernels * LAUNCH):.1f}"
                for speed in BANDWIDTH.values()
            ]
            ratio = [f"{part / cost.scores:.2f}" for part in (cost.moved, cost.peak)]
            lines.append([name, kind, str(len(masks)), str(cost.kernels), *ratio])
            # Of the others the kernels read the scores many times: no estimate.
            known = kind in ("ours", "triton")
            lines[-1] += times if known else ["-"] * len(times)
    return markdown(heads, lines)


def dense_table(names: Sequence[str] = ARCHS) -> str:
    heads = ["arch", "kernels of a dense step", "GB of a dense step"]
    heads += ["selection: share of kernels", "of bytes"]
    lines = []
    for name in names:
        step, ours = count_dense_step(name), count_costs(name)["ours"]
        shares = (ours.kernels / step.kernels, ours.moved / step.moved)
        gigabytes = f"{step.moved / 1e9:.1f}"
        shown = [f"{share:.1%}" for share in shares]
        lines.append([name, str(step.kernels), gigabytes, *shown])
    return markdown(heads, lines)


def check_exactness(device: str) -> List[str]:
    """Compare masks on the device with those on the CPU; return what differs."""
    generator = torch.Generator().manual_seed(1)
    problems = []
    kinds = ("ours", "triton") if HAS_TRITON and device != "cpu" else ("ours",)
    for dtype in (torch.float32, torch.float16, torch.bfloat16):
        for what in ("random", "tied", "constant", "not finite"):
            shapes = ((96, 64), (4000, 64), (96, 64))
            scores = [torch.randn(s, generator=generator) for s in shapes]
            if what == "tied":
                scores = [(4 * s).round() for s in scores]
            if what == "constant":
                scores = [torch.full_like(s, -0.25) for s in scores]
            if what == "not finite":
                for score in scores:
                    score[::7], score[1::7] = torch.inf, torch.nan
            scores = [s.to(dtype) for s in scores]
            moved = [s.to(device) for s in scores]
            for kind in kinds:
                with in_triton(kind):
                    masks = together(moved, selection_for).masks(moved)
                if not all(
                    torch.equal(mask.cpu(), top_k_mask(score, KEEP))
                    for mask, score in zip(masks, scores)
                ):
                    problems.append(
                        f"{kind}, {what} scores of {dtype}: the masks differ"
                    )
    return problems


def step_rows(name: str, size: Size, device: str, precision: str, rounds: int):
    """Seconds of a training step of each kind, as ratios to ours and to dense."""
    flags = ["--cpu"] if device == "cpu" else []
    flags += ["--fp16"] if precision == "fp16" else []

    def stepper(kind: str) -> Callable[[], None]:
        method = ["--mask-method", kind] if kind in METHODS else []
        model = "dense" if kind == "dense" else "ours"
        trainer = build_trainer(model, size, flags=[*flags, *method])
        sample = [batch(TOKENS if device != "cpu" else 64, size)]

        def step() -> None:
            with in_triton(kind):
                trainer.train_step(sample)
            if device != "cpu":
                torch.cuda.synchronize()

        return step

    pairs = [
        ("ours", "ours", "dense", 1.10),
        ("kthvalue", "kthvalue", "ours", 1.0),
        ("sort", "sort", "ours", 1.0),
    ]
    kinds = list(KINDS)
    if HAS_TRITON and device != "cpu":
        pairs.append(("triton", "triton", "ours", 1.0))
        kinds.append("triton")
    works = {kind: stepper(kind) for kind in kinds}
    title = f"{name}, {precision}"
    seconds = interleave(works, rounds, title=title, warm_up=2)
    note = ", ".join(f"{k} {1e3 * median(v):.1f} ms" for k, v in seconds.items())
    return [
        Row(
            name=f"{name}-{precision}-{kind}",
            what=f"training step, {name}, {precision}, {upper} / {lower}",
            target=target,
            at_most=kind in ("ours", "triton"),
            values=ratios(seconds[upper], seconds[lower]),
            measured=seconds,
            detail=note if kind == "ours" else "",
        )
        for kind, upper, lower, target in pairs
    ]


def main() -> None:
    options = parse()
    hush_fairseq()
    if options.count:
        print(f"{count_table()}\n\n{dense_table()}")
        if HAS_TRITON:
            print(f"\n{count_table(lambda name: {'triton': count_triton(name)})}")
        return
    METHODS.update(kthvalue=ByKthvalue, sort=BySort)
    problems = check_exactness(options.device)
    for problem in problems:
        say(problem)
    print(f"exactness on {options.device}: {'failed' if problems else 'passed'}\n")
    sizes = {n: named_size(n) for n in ("small", "wide")}
    if options.quick:
        sizes = {"toy": QUICK.size}
    precisions = ("fp32",) if options.device == "cpu" else ("fp32", "fp16")
    rows = []
    for name, size in sizes.items():
        for precision in precisions:
            rows += step_rows(name, size, options.device, precision, options.rounds)
    print(markdown(HEADS, [row.cells() for row in rows]))
    for row in rows:
        if row.detail:
            print(f"\n{row.what}: {row.detail}")
    found: Dict[str, Any] = {"machine": machine(), "device": options.device}
    if options.device != "cpu":
        found["gpu"] = torch.cuda.get_device_name(options.device)
    found["exactness"] = problems
    found["rows"] = {row.name: row.record() for row in rows}
    options.out.mkdir(parents=True, exist_ok=True)
    with whole_file(options.out / "gpu.json") as file:
        file.write(json.dumps(found, indent=1).encode())
    say(f"wrote {options.out}/gpu.json")
    if problems:
        raise SystemExit("the masks on this device are not those of the CPU")


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--count", action="store_true", help="only count the cost")
    parser.add_argument("--device", default="cuda", help="cuda, cuda:1 or cpu")
    parser.add_argument("--quick", action="store_true", help="a toy model, to try it")
    parser.add_argument("--rounds", type=int, default=15, help="of steps (default 15)")
    parser.add_argument(
        "--out", type=Path, default=Path("bench-out"), help="folder of gpu.json"
    )
    options = parser.parse_args()
    if not options.count and options.device != "cpu" and not torch.cuda.is_available():
        parser.error(
            "torch finds no CUDA device here; --count needs none, and --device cpu"
            " tries the script without one"
        )
    return options


if __name__ == "__main__":
    main()
