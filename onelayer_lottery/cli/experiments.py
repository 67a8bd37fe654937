"""The commands sweep and plot of onelayer-lottery; what they use is imported late."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any, Dict

from onelayer_lottery.errors import LotteryError


def add_commands(commands) -> None:
    """Add sweep and plot to the command line's parser."""
    _add_sweep(commands)
    _add_plot(commands)


def _add_sweep(commands) -> None:
    parser = commands.add_parser(
        "sweep",
        help="train, translate and score every run of a grid",
        description="Run fairseq-train and fairseq-generate for every run of a grid"
        " file, each in processes of its own. Stop it whenever you like: called again,"
        " it continues. Finished runs are not repeated, unless others need a checkpoint"
        " that is gone; half-finished ones continue from their checkpoint, failed ones"
        " are tried again. OUT/results.jsonl has one"
        " line of JSON per run; of a finished run its best checkpoint, its ticket and"
        " its logs are kept.",
        epilog="exit status: 0 all runs finished, 1 some failed, 2 misuse, 130 stopped",
    )
    parser.add_argument("grid", type=Path, metavar="GRID.yaml")
    parser.add_argument(
        "--out", type=Path, required=True, metavar="DIR", help="folder of the runs"
    )
    parser.add_argument(
        "--data",
        type=Path,
        metavar="DIR",
        help="binarised data (default: what the grid names)",
    )
    parser.add_argument(
        "--jobs",
        type=int,
        metavar="N",
        help="runs at a time, a CPU or GPU each (default: as many as there are GPUs,"
        " on a CPU 1; with slurm all)",
    )
    parser.add_argument(
        "--dry-run",
        action="store_true",
        help="only print the commands, ready to paste",
    )
    parser.add_argument(
        "--launcher",
        choices=["process", "local", "slurm"],
        default="process",
        help="process: on this machine; slurm: a job each through submitit; local:"
        " submitit's local executor (default: process)",
    )
    parser.add_argument(
        "--launcher-option",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="for submitit, e.g. slurm_partition=gpu or timeout_min=600; repeatable",
    )
    parser.set_defaults(run=_sweep, error=parser.error)


def _sweep(options: argparse.Namespace) -> None:
    from onelayer_lottery.experiments.sweep.commands import paste, task_of
    from onelayer_lottery.experiments.sweep.flags import check_flags
    from onelayer_lottery.experiments.sweep.grid import read_grid
    from onelayer_lottery.experiments.sweep.launch import (
        Processes,
        Submitit,
        visible_gpus,
    )
    from onelayer_lottery.experiments.sweep.schedule import sweep

    if options.jobs is not None and options.jobs < 1:
        options.error(f"--jobs {options.jobs}: give a number from 1 on")
    if options.launcher_option and options.launcher == "process":
        options.error("--launcher-option is for --launcher slurm or local")
    extra = _launcher_options(options)
    grid = read_grid(options.grid, data=options.data)
    check_flags(grid)
    gpus = visible_gpus()
    cpu = not gpus
    if options.launcher == "slurm":  # the GPUs of its machines, not of this one
        cpu = extra.get("gpus_per_node", grid.gpus) == 0
    if options.dry_run:
        for run in {run.id: run for run in grid.runs}.values():
            print(f"# {run.name}")
            task = task_of(run, grid, out=options.out, cpu=cpu)
            for words in task["steps"].values():
                print(paste(words, cpu=cpu))
        return
    if gpus and len(gpus) < grid.gpus and options.launcher == "process":
        raise LotteryError(
            f"{options.grid} wants {grid.gpus} GPUs for each run, here are {len(gpus)};"
            " change gpus there, or use --launcher slurm"
        )
    if options.launcher == "process":
        devices = [
            ",".join(gpus[start : start + grid.gpus])
            for start in range(0, len(gpus) - grid.gpus + 1, grid.gpus)
        ]
        jobs = options.jobs or len(devices) or 1
        if devices and jobs > len(devices):
            options.error(
                f"--jobs {jobs}: there are GPUs for {len(devices)} runs at a time"
            )
        launcher: Any = Processes(devices)
    else:
        jobs = options.jobs or (len(grid.runs) if options.launcher == "slurm" else 1)
        launcher = Submitit(
            options.launcher, options.out, gpus=0 if cpu else grid.gpus, options=extra
        )
    failed = sweep(grid, options.out, launcher=launcher, jobs=jobs, cpu=cpu)
    if failed:
        raise LotteryError(
            f"{len(failed)} of {len({run.id for run in grid.runs})} runs failed; their"
            f" logs are named in {options.out / 'results.jsonl'}; call again to retry"
        )
    print(f"wrote {options.out / 'results.jsonl'}: all runs of {options.grid} finished")


def _launcher_options(options: argparse.Namespace) -> Dict[str, Any]:
    extra: Dict[str, Any] = {}
    for item in options.launcher_option:
        name, equals, value = item.partition("=")
        if not (name and equals and value):
            options.error(f"--launcher-option {item}: give KEY=VALUE")
        extra[name] = int(value) if value.isdigit() else value
    return extra


def _add_plot(commands) -> None:
    parser = commands.add_parser(
        "plot",
        help="draw the figures and tables of a sweep",
        description="Draw the paper's figures, learning curves and score by bytes as"
        " SVG from OUT of a sweep, write Table 1 as Markdown and CSV, and report.html,"
        " one page with all of it. Missing runs are listed, not an error.",
    )
    parser.add_argument("runs", type=Path, metavar="RUNS", help="OUT of the sweep")
    parser.add_argument("-o", "--output", type=Path, required=True, metavar="DIR")
    parser.set_defaults(run=_plot)


def _plot(options: argparse.Namespace) -> None:
    try:
        from onelayer_lottery.experiments.plot.report import write_report
    except ModuleNotFoundError as error:
        if error.name != "matplotlib":
            raise
        raise LotteryError(
            "plot needs the library matplotlib: pip install matplotlib"
        ) from None

    for gap in write_report(options.runs, options.output):
        print(gap, file=sys.stderr)
    print(f"wrote {options.output / 'report.html'} and its figures and tables")
