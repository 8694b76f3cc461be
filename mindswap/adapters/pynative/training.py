"""Swap of a MindFormers training in PyNative mode, from building the network to the report."""

import contextlib
import json
import logging
import os
from collections.abc import Iterator
from pathlib import Path

import mindspore as ms
from mindformers.core.context.build_context import Context
from mindspore import nn

from mindswap.adapters.graph.apply import read_tree
from mindswap.adapters.graph.mindformers import set_policy
from mindswap.adapters.graph.mindspore import find_layers
from mindswap.adapters.pynative.copies import StreamCopies, ThreadCopies
from mindswap.adapters.pynative.swap import Swap
from mindswap.policy.model import Policy
from mindswap.policy.resolve import resolve_layer
from mindswap.report.pynative import format_swap_report


@contextlib.contextmanager
def network_building(has_cpu_cells: bool) -> Iterator[None]:
    """Prepare MindFormers for building a network inside the block.

    Args:
        has_cpu_cells: build a newer model, in graph mode and with CPU replacements.
    """
    if not has_cpu_cells:
        yield
        return
    from mindswap.adapters.pynative.cpu_cells import replace_cpu_cells

    replace_cpu_cells()
    context = Context().ms_ctx_opr
    context.set_context(mode=ms.GRAPH_MODE)  # in PyNative mode their classes build another model, for hyper_parallel
    try:
        yield
    finally:
        context.set_context(mode=ms.PYNATIVE_MODE)


def start_swap(network: nn.Cell, policy: Policy, logger: logging.Logger, is_audited: bool) -> Swap:
    """Set a policy on a network of MindFormers, and swap from its second pass on.

    Args:
        network: just built.
        policy: with swap enabled.
        logger: receives the log lines.
        is_audited: also count layers without swap, and fill memory with NaN before it is reused.
    """
    set_policy(network, policy, logger)
    layers = list(find_layers(network))
    decisions = [resolve_layer(policy, index, read_tree(layer)) for index, layer in enumerate(layers)]
    copies = ThreadCopies() if ms.get_context("device_target") == "CPU" else StreamCopies()
    return Swap(network, layers, decisions, copies=copies, poison=is_audited, watch_all=is_audited)


def end_swap(swap: Swap, output_dir: str, logger: logging.Logger) -> None:
    """Log the swap of this rank, and write it to `OUTPUT_DIR/swap/rank_N.json`."""
    report = swap.finish()
    for line in format_swap_report(report):
        logger.info("mindswap: %s", line)
    path = Path(output_dir) / "swap" / f"rank_{os.environ.get('RANK_ID', '0')}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(report.to_json(), indent=2) + "\n", encoding="utf-8")
