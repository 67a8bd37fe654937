"""The commands user-dir and flags of onelayer-lottery: what to tell fairseq."""

from __future__ import annotations

import argparse
import re
from dataclasses import fields
from pathlib import Path
from typing import Any, Iterator

from onelayer_lottery.errors import LotteryError

_PACKAGE = Path(__file__).resolve().parents[1]
_SMALL = "transformer_onelayer_random_small"

# Architectures and presets whose defaults differ, for the Markdown page.
_DEFAULTS = (
    (_SMALL, "paper"),
    (_SMALL, "paper-text"),
    (_SMALL, "best"),
    (_SMALL, "best-from-dense"),
    ("transformer_random_small", "paper"),
    ("roberta_onelayer_random_base", "paper"),
    ("roberta_onelayer_random_base", "best"),
    ("transformer_reservoir_small", "paper"),
)


def add_commands(commands) -> None:
    """Add user-dir and flags to the command line's parser."""
    parser = commands.add_parser(
        "user-dir", help="print the path to give fairseq as --user-dir"
    )
    parser.set_defaults(run=lambda options: print(_PACKAGE))
    parser = commands.add_parser(
        "flags",
        help="explain the flags that this package adds to fairseq-train",
        description="Explain the flags that this package adds to fairseq-train, whose"
        " own --help shows none of an architecture.",
    )
    parser.add_argument(
        "arch",
        metavar="ARCH",
        nargs="?",
        help=f"architecture of this package (default: {_SMALL})",
    )
    parser.add_argument(
        "--markdown",
        action="store_true",
        help="print docs/flags.md: the flags of all architectures, as tables",
    )
    parser.set_defaults(run=_flags, error=parser.error)


def _flags(options: argparse.Namespace) -> None:
    if options.markdown:
        if options.arch:
            options.error("--markdown is about all architectures: leave ARCH out")
        print("\n".join(_markdown()))
        return
    from fairseq.models import ARCH_MODEL_REGISTRY

    import onelayer_lottery.plugin  # noqa: F401  registers the architectures
    from onelayer_lottery.planting.config import add_mask_args

    arch = options.arch or _SMALL
    ours = {n: m for n, m in ARCH_MODEL_REGISTRY.items() if hasattr(m, "config_class")}
    if arch not in ours:
        raise LotteryError(
            f"{arch} is not an architecture of this package; give one of"
            f" {', '.join(sorted(ours))}"
        )
    parser = argparse.ArgumentParser(
        prog="fairseq-train DATA --user-dir onelayer_lottery",
        usage=f"%(prog)s --arch {arch} [flags below] [flags of fairseq]",
        add_help=False,
    )
    add_mask_args(parser, ours[arch].config_class)
    print(parser.format_help(), end="")  # print_help would hide a write error


def _markdown() -> Iterator[str]:
    """The lines of docs/flags.md, from the dataclasses that define the flags."""
    import onelayer_lottery.plugin  # noqa: F401  registers the architectures
    from onelayer_lottery.criterions.distillation import DistillationConfig
    from onelayer_lottery.planting.config import MaskConfig
    from onelayer_lottery.planting.reservoir_config import ReservoirConfig

    yield "# Flags"
    yield ""
    yield "<!-- Generated: onelayer-lottery flags --markdown > docs/flags.md -->"
    yield ""
    yield "Flags that this package adds to `fairseq-train`. All flags of the stock"
    yield "Transformer and RoBERTa apply too. `onelayer-lottery flags ARCH` prints the"
    yield "flags of one architecture; `fairseq-train --help` shows none of them. In a"
    yield "YAML file for `fairseq-hydra-train`, `--mask-keep` is `model.mask_keep`, and"
    yield "so on."
    for title, config in (
        ("Masked models", MaskConfig),
        ("Reservoir models", ReservoirConfig),
        ("The criterion `distillation`", DistillationConfig),
    ):
        yield from ["", f"## {title}", ""]
        if config is ReservoirConfig:
            yield "The flags above, with these changes and additions:"
            yield ""
        yield "| flag | default | meaning |"
        yield "|---|---|---|"
        yield from _rows(config)
    yield from ["", "## Defaults by preset and architecture", ""]
    yield "An architecture or a preset may change a default. A flag that you give"
    yield "always wins. Some values depend on the depth and on `--mask-keep`; these are"
    yield "for the architecture's own depth and `--mask-keep 0.5`."
    yield ""
    yield "| architecture | preset | defaults that differ from the tables above |"
    yield "|---|---|---|"
    for arch, preset in _DEFAULTS:
        yield f"| `{arch}` | `{preset}` | {_differing(arch, preset)} |"


def _rows(config: Any) -> Iterator[str]:
    """One row for each flag that a dataclass itself declares, not those it inherits."""
    from onelayer_lottery.planting.config import add_mask_args

    parser = argparse.ArgumentParser()
    add_mask_args(parser, config)
    choices = {action.dest: action.choices or () for action in parser._actions}
    for field in fields(config):
        if field.name not in config.__annotations__:
            continue
        default = "" if str(field.default) in ("", "False") else f"`{field.default}`"
        meaning = field.metadata["help"].replace("|", r"\|")
        meaning = meaning.rpartition(" (default: ")[0] or meaning
        meaning = re.sub(r"--[a-z-]+", r"`\g<0>`", meaning)
        values = ", ".join(f"`{value}`" for value in choices[field.name])
        if values:
            meaning += f". Values: {values}"
        yield f"| `{_flag(field.name)}` | {default} | {meaning} |"


def _differing(arch: str, preset: str) -> str:
    from fairseq.models import ARCH_CONFIG_REGISTRY, ARCH_MODEL_REGISTRY

    given = argparse.Namespace(mask_preset=preset)
    ARCH_CONFIG_REGISTRY[arch](given)
    changed = {
        field.name: getattr(given, field.name)
        for field in fields(ARCH_MODEL_REGISTRY[arch].config_class)
        if not field.name.startswith("_") and field.name != "mask_preset"
        if getattr(given, field.name) != field.default
    }
    return " ".join(f"`{_flag(name)} {value}`" for name, value in changed.items())


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")
