"""The layers that --reservoir-layers and --reservoir-mask choose."""

from __future__ import annotations

from typing import Dict, List

ALTERNATING = "alternating"


class LayersError(ValueError):
    """--reservoir-layers or --reservoir-mask is malformed; the message says how."""


def reservoir_layers(text: str, depths: Dict[str, int]) -> Dict[str, List[int]]:
    """Return the indices of the reservoir layers of each side in ``depths``.

    >>> reservoir_layers("encoder:0,3/decoder:alternating", dict(encoder=6, decoder=3))
    {'encoder': [0, 3], 'decoder': [1]}
    """
    chosen: Dict[str, List[int]] = {side: [] for side in depths}
    if text == "none":
        return chosen
    if text == ALTERNATING:
        text = "/".join(f"{side}:{ALTERNATING}" for side in depths)
    parts = [part.partition(":") for part in text.split("/")]
    for number, (side, colon, listed) in enumerate(parts):
        if not colon or not listed or side not in depths:
            sides = "/".join(f"{side}:1,3" for side in depths)
            raise LayersError(
                f"has {side + colon + listed!r}; give alternating, none, or layers such"
                f" as {sides}"
            )
        if side in [earlier[0] for earlier in parts[:number]]:
            raise LayersError(f"has {side} twice; give its layers in one list")
        chosen[side] = _indices(side, listed, depths[side])
    return chosen


def masked_layers(
    text: str, chosen: Dict[str, List[int]], depths: Dict[str, int]
) -> Dict[str, List[int]]:
    """Return the indices of those chosen layers that have masks."""
    if text == "all":
        return chosen
    masked = reservoir_layers(text, depths)
    for side, indices in masked.items():
        for index in indices:
            if index not in chosen[side]:
                raise LayersError(
                    f"has {side}:{index}, which is trained and not in"
                    " --reservoir-layers; name reservoirs only, or give all"
                )
    return masked


def layers_text(chosen: Dict[str, List[int]]) -> str:
    """Return the flag that chooses these layers, in one way for each choice."""
    parts = [
        f"{side}:{','.join(map(str, sorted(indices)))}"
        for side, indices in chosen.items()
        if indices
    ]
    return "/".join(parts) or "none"


def _indices(side: str, listed: str, depth: int) -> List[int]:
    if listed == ALTERNATING:
        return list(range(1, depth, 2))
    indices = []
    for word in listed.split(","):
        if not (word.isascii() and word.isdigit() and len(word) < 10):
            raise LayersError(
                f"has {word[:60]!r} for the {side}; give alternating, or numbers"
                " separated by commas"
            )
        index = int(word)
        if index >= depth:
            raise LayersError(
                f"has {side}:{index}, but the {side} has {depth} layers; they are"
                f" counted from 0 to {depth - 1}"
            )
        if index in indices:
            raise LayersError(f"has {side}:{index} twice; name each layer once")
        indices.append(index)
    return indices
