"""Conversion of a policy to calls of `hyper_parallel`, the swap engine of MindFormers 2.x.

The engine has two calls. A wrapper on a cell swaps everything that autograd saves inside it. A pair (i, j) of layers
releases the memory of layer i in forward of layer j, and prefetches it in backward of layer j. A layer has one group of
tensors, one layer that it waits for, and one that waits for it; the manager forgets a second pair
(`set_forward_prefetch_layer` in hyper_parallel/core/activation_checkpoint/swap.py). Prefetch distances therefore count
layers, and single storages cannot be named.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from mindswap.errors import ApplyError
from mindswap.policy.resolve import EntryMatch, LayerDecisions, Path
from mindswap.pynative.schedule import Unit


@dataclass(frozen=True)
class UpstreamCalls:
    """Calls of hyper_parallel."""

    # wrapped cells as (layer index, path below the layer); the layer itself has the path ()
    wraps: tuple[tuple[int, Path], ...]
    pairs: tuple[tuple[int, int], ...]  # (swapped layer, layer that releases and prefetches it)


def upstream_calls(layers: Sequence[LayerDecisions], unit: Unit) -> UpstreamCalls:
    """Return the calls that apply a policy to the layers of a network.

    Recomputed cells are not swapped. A cell inside a swapped cell needs no wrapper.

    Args:
        layers: decisions for each layer.
        unit: unit of the prefetch distances.

    Raises:
        ApplyError: with everything that hyper_parallel does not support.
    """
    moving = {layer.layer_index: _moving(layer) for layer in layers}
    named = {index: entry_matches for index, entry_matches in moving.items() if entry_matches}
    problems = [*_single_operators(named), *_distances(named, len(layers), unit)]
    if problems:
        raise ApplyError("hyper_parallel does not support this policy:\n" + "\n".join(problems))
    wraps = [(index, path) for index, entry_matches in named.items() for path in _outermost(entry_matches)]
    return UpstreamCalls(
        tuple(wraps), tuple((index, index + _prefetches(entry_matches)[0]) for index, entry_matches in named.items())
    )


def _moving(layer: LayerDecisions) -> tuple[EntryMatch, ...]:
    return tuple(claim for claim in layer.offloads if not layer.decision_for(claim.path).recomputed_by)


def _outermost(entry_matches: Iterable[EntryMatch]) -> tuple[Path, ...]:
    paths = {match.path for match in entry_matches}

    def is_inside_another(path: Path) -> bool:
        return any(path[:depth] in paths for depth in range(len(path)))

    return tuple(sorted(path for path in paths if not is_inside_another(path)))


def _prefetches(entry_matches: Iterable[EntryMatch]) -> list[int]:
    return sorted({match.entry.prefetch for match in entry_matches if match.entry.prefetch is not None})


def _single_operators(named: dict[int, tuple[EntryMatch, ...]]) -> list[str]:
    layers_by_path: dict[Path, list[int]] = {}
    for index, entry_matches in named.items():
        for claim in entry_matches:
            if claim.match.node.is_primitive:
                layers_by_path.setdefault(claim.path, []).append(index)
    return [
        f"layers {indices}: {'.'.join(path)} is a single operator; upstream moves what is saved inside of a cell\n"
        f"    fix:     name {'the cell ' + '.'.join(path[:-1]) if path[1:] else 'the full layer'}, or leave copies out"
        for path, indices in layers_by_path.items()
    ]


def _distances(named: dict[int, tuple[EntryMatch, ...]], num_layers: int, unit: Unit) -> list[str]:
    """Return the error messages for unsupported prefetch distances."""
    if named and unit is not Unit.LAYERS:
        counts = sorted({count for entry_matches in named.values() for count in _prefetches(entry_matches)})
        return [
            f"its distances {counts} count operators; upstream fetches when a layer begins backward\n"
            "    fix:     write them in layers, from 1, and say so: mindswap.apply(..., unit=Unit.LAYERS)"
        ]
    problems = []
    fetched: dict[int, list[int]] = {}
    for index, entry_matches in named.items():
        counts = _prefetches(entry_matches)
        if len(counts) > 1:
            problems.append(
                f"layer {index}: distances {counts}; all that moves of a layer is fetched together\n"
                "    fix:     one distance for the layer"
            )
        elif index + counts[0] >= num_layers:
            problems.append(
                f"layer {index}: no layer {index + counts[0]} that would fetch it, at distance {counts[0]}\n"
                f"    allowed: layers up to {num_layers - 1 - counts[0]}"
            )
        else:
            fetched.setdefault(index + counts[0], []).append(index)
    problems += [
        f"layers {indices} would all be fetched by layer {fetcher}, which upstream lets fetch one\n"
        "    fix:     one distance for these layers"
        for fetcher, indices in fetched.items()
        if len(indices) > 1
    ]
    return problems
