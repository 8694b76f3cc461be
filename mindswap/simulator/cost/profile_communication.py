"""`communication.json` of a profile -> what collectives sent over which links.

The file has steps, then `p2p` and `collective`, then operators; msprof's own has the operators at the top. The links of
one kind work side by side, and `Transit Time` is their sum: size / time is what one link reaches. SDMA is the sum of
HCCS, PCIE and SIO, so it is left out. Tasks that reduce while they move were not counted before CANN 8, so a
ReduceScatter may have nothing.
"""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from mindswap.errors import CostError
from mindswap.simulator.cost.profile import Transfer
from mindswap.simulator.cost.profile_tables import number, to_ns

LINKS = ("HCCS", "RDMA", "PCIE", "SIO")
TIMES, LINK_FIGURES = "Communication Time Info", "Communication Bandwidth Info"
MAX_BYTES = 2**28
MAX_DEPTH = 3


def read_transfers(path: Path) -> tuple[Transfer, ...]:
    """Every operator and kind of link with something sent.

    Raises:
        CostError: if the file is none of this kind, or larger than 256 MiB: it is read whole.
    """
    try:
        size = path.stat().st_size
        if size > MAX_BYTES:
            limit = f"at most {MAX_BYTES >> 20} are read"
            raise CostError(f"{path}: has {size >> 20} MiB, {limit}\n    fix:     profile fewer steps")
        data = json.loads(path.read_text("utf-8-sig"))
    except (OSError, ValueError, RecursionError) as error:
        raise CostError(f"{path}: is no communication.json of a profiler: {error}") from error
    return tuple(transfer for name, entry in _operators(path, data) for transfer in _transfers(path, name, entry))


def _operators(path: Path, data: Any, depth: int = 0) -> Iterator[tuple[str, Mapping[str, Any]]]:
    if not isinstance(data, dict):
        raise CostError(f"{path}: is no communication.json of a profiler: no object where steps or operators stand")
    for name, entry in data.items():
        if isinstance(entry, dict) and LINK_FIGURES in entry:
            if not name.startswith("Total"):
                yield name, entry
        elif depth < MAX_DEPTH:
            yield from _operators(path, entry, depth + 1)


def _transfers(path: Path, name: str, entry: Mapping[str, Any]) -> Iterator[Transfer]:
    where = f"{path}: {name[:80]}"
    for link in LINKS:
        figures = _object(where, entry[LINK_FIGURES]).get(link)
        if figures is None:
            continue
        figures = _object(where, figures)
        size = int(number(where, str(figures.get("Transit Size(MB)", ""))) * 10**6)
        if size:
            link_ns = to_ns(where, str(figures.get("Transit Time(ms)", ""))) * 1000
            elapsed = _object(where, entry.get(TIMES, {})).get("Elapse Time(ms)", 0)
            yield Transfer(name.partition("@")[0], link, size, link_ns, to_ns(where, str(elapsed)) * 1000)


def _object(where: str, value: Any) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise CostError(f"{where}: no object where figures of links stand")
    return value
