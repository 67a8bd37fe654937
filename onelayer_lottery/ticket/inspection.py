"""Report what a ticket or checkpoint holds: a table for people, JSON for programs."""

from __future__ import annotations

from itertools import combinations
from typing import Any, Dict, List, Optional

import numpy as np

from onelayer_lottery.errors import printable
from onelayer_lottery.identity import signature_of
from onelayer_lottery.ticket.format import Ticket

_MIB = 2**20
_COMPARED = 64  # masks of a role: their pairs grow with the square
_WIDEST = 100  # characters of a role's name


def inspect_ticket(ticket: Ticket) -> Dict[str, Any]:
    """Count per role and in total, as the paper's Table 1 does for its models.

    A mask of a ticket that was not read from a file counts one bit per position.
    """
    configuration = ticket.configuration()
    layers: Dict[str, List[str]] = {role: [] for role in ticket.frozen}
    for name, masked in ticket.masks.items():
        layers[masked.role].append(name)
    roles = {role: _role(ticket, role, layers[role]) for role in ticket.frozen}
    positions = sum(row["layers"] * row["positions"] for row in roles.values())
    kept = sum(row["kept"] for row in roles.values())
    frozen = sum(row["positions"] for row in roles.values())
    trained = sum(array.size for array in ticket.dense.values())
    mask_bytes = sum(row["mask_bytes"] for row in roles.values())
    return {
        "architecture": configuration.arch,
        "signature": _signature(ticket, configuration.model),
        "roles": roles,
        "chance_overlap": ticket.keep / (2 - ticket.keep),
        "totals": {
            "masks": len(ticket.masks),
            "positions": positions,
            "kept": kept,
            "frozen": frozen,
            "trained": trained,
            "mask_bytes": mask_bytes,
        },
        "table_1": {
            "params": round(ticket.keep * frozen) + trained,
            "params_dense": positions + trained,
            "memory_mib": (mask_bytes + 4 * trained) / _MIB,
            "memory_mib_with_frozen": (mask_bytes + 4 * (frozen + trained)) / _MIB,
            "memory_mib_dense": 4 * (positions + trained) / _MIB,
        },
    }


def format_inspection(report: Dict[str, Any]) -> str:
    """Format the report as text."""
    totals, table = report["totals"], report["table_1"]
    names = {role: _shown(role) for role in report["roles"]}
    width = max([44, *(len(name) + 1 for name in names.values())])
    head = f"{'role':<{width}}{'shape':>13}{'layers':>8}{'kept':>12}{'bytes':>11}"
    head += f"{'overlap':>9}"
    lines: List[str] = [report["architecture"], report["signature"]]
    lines += ["", head] if report["roles"] else []
    for role, row in report["roles"].items():
        shape = "x".join(map(str, row["shape"]))
        overlap = "" if row["overlap"] is None else f"{row['overlap']:.3f}"
        lines.append(
            f"{names[role]:<{width}}{shape:>13}{row['layers']:>8}{row['kept']:>12,}"
            f"{row['mask_bytes']:>11,}{overlap:>9}"
        )
    if not report["roles"]:
        bytes_ = 4 * totals["trained"] / _MIB
        lines += [
            "",
            f"no masks; {totals['trained']:,} values trained, {bytes_:.1f} MiB",
        ]
        return "\n".join(lines)
    share = totals["kept"] / totals["positions"]
    lines += [
        "",
        f"{totals['masks']} masks keep {totals['kept']:,} of {totals['positions']:,}"
        f" positions ({share:.1%}) in {totals['mask_bytes']:,} bytes, over"
        f" {totals['frozen']:,} frozen weights; {totals['trained']:,} values trained",
        "overlap: mean Jaccard index of the masks of different layers of a role"
        f" (chance: {report['chance_overlap']:.3f})",
        "",
        "as in the paper's Table 1:",
        f"  params (no mask)   {table['params']:,} (dense {table['params_dense']:,})",
        f"  memory             {table['memory_mib']:.1f} MiB from a seed,"
        f" {table['memory_mib_with_frozen']:.1f} MiB with the frozen weights stored"
        f" (dense {table['memory_mib_dense']:.1f} MiB)",
    ]
    return "\n".join(lines)


def _shown(role: str) -> str:
    """A name from the file: on one line, short, and harmless to a terminal."""
    name = printable(role[: _WIDEST + 1]).replace("\n", "\\n")
    return name if len(name) <= _WIDEST else f"{name[: _WIDEST - 3]}..."


def _role(ticket: Ticket, role: str, layers: List[str]) -> Dict[str, Any]:
    masks = [(n, ticket.masks[n].mask, ticket.masks[n].signs) for n in layers]
    return {
        "shape": list(ticket.frozen[role].shape),
        "layers": len(masks),
        "positions": int(np.prod(ticket.frozen[role].shape)),
        "kept": sum(int(mask.sum()) for _, mask, _ in masks),
        "mask_bytes": sum(
            ticket.stored.get(f"mask/{name}", -(-mask.size // 8))
            + (0 if signs is None else -(-signs.size // 8))
            for name, mask, signs in masks
        ),
        "overlap": _overlap([mask for _, mask, _ in masks[:_COMPARED]]),
    }


def _overlap(masks: List[np.ndarray]) -> Optional[float]:
    """Return the mean over pairs of |A and B| / |A or B|."""
    indices = [
        float((a & b).sum() / max(1, (a | b).sum())) for a, b in combinations(masks, 2)
    ]
    return sum(indices) / len(indices) if indices else None


def _signature(ticket: Ticket, flags: Dict[str, Any]) -> str:
    settings = ("keep", "seed", "init", "fan")
    return signature_of(
        {**{f"mask_{n}": getattr(ticket, n) for n in settings}, **flags}
    )
