"""Optimizer states on the host (`optimizer: {swap: True}`): what MindSpore's Ascend backend copies in a dry run.

The backend inserts the copies, not the frontend whose graph has those of activations. The model is cut to one layer of
each pipeline stage and chunk: the optimizer treats all weights alike.
"""

import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mindswap.command_line.progress import PhaseLines
from mindswap.config.nodes import Document
from mindswap.config.render import document_from_data
from mindswap.config.step_settings import is_on_cpu, read_step_settings
from mindswap.features.dryrun import DryRun, DryRunOptions, StatusCallback, run_stages
from mindswap.report.tables import NOTHING, attributes, format_table
from mindswap.rules.checker import CheckResult
from mindswap.units import format_bytes, format_count

HEADER = ("optimizer states", "without swap", "on the card", "copied to the card", "copied back", "as asked")
ON_CPU = "optimizer.swap: with device_target: CPU all optimizer states are in host memory anyway, and nothing is copied"
ALL_COPIED = "the optimizer copies every state to the card and back"
NOTHING_MOVES = "optimizer: {swap: True} has NO effect: the states are on the card during the whole step"
IN_PART = "optimizer: {swap: True} has NOT the specified effect: every state should be copied to the card and back"


@dataclass(frozen=True)
class StatesEffect:
    """Copies of optimizer states in a dry run of one rank. Numbers of states, sizes in bytes.

    Attributes:
        name: the rank and its layers.
        num_without_swap: states without `optimizer.swap`, which are all on the device; None if that was not run.
        bytes_without_swap: their size; None if that was not run.
        num_on_device: states that are on the device during the whole step.
        bytes_on_device: their size.
        num_prefetched: states that are copied to the device in a step.
        prefetched_bytes: their size; None if the dry run has no blocks of their own for them.
        num_written_back: copies of states back to the host in a step.
    """

    name: str
    num_without_swap: int | None
    bytes_without_swap: int | None
    num_on_device: int
    bytes_on_device: int
    num_prefetched: int
    prefetched_bytes: int | None
    num_written_back: int

    @property
    def is_as_asked(self) -> bool:
        """Return whether all states are in host memory, and each is copied in both directions in a step.

        PmaAdamW has copies to the host in both branches of a condition, so there may be more of these.
        """
        num_expected = self.num_prefetched if self.num_without_swap is None else self.num_without_swap
        sizes = {self.bytes_without_swap, self.prefetched_bytes} - {None}
        is_complete = 0 < num_expected == self.num_prefetched <= self.num_written_back
        return is_complete and len(sizes) <= 1 and not self.num_on_device

    def __str__(self) -> str:
        row = (
            self.name,
            _count(self.num_without_swap, self.bytes_without_swap),
            _count(self.num_on_device, self.bytes_on_device),
            _count(self.num_prefetched, self.prefetched_bytes),
            str(self.num_written_back),
            "yes" if self.is_as_asked else "NO",
        )
        verdict = ALL_COPIED if self.is_as_asked else IN_PART if self.num_prefetched else NOTHING_MOVES
        return f"{format_table(HEADER, [row])}\n\n{verdict} (dry run on MindSpore's Ascend backend, without a card)"

    def to_json(self) -> dict[str, Any]:
        """Return the effect as plain data for `--json`."""
        names = "num_without_swap bytes_without_swap num_on_device bytes_on_device num_prefetched prefetched_bytes"
        return {"ok": self.is_as_asked, **attributes(self, f"name {names} num_written_back")}


def has_states_on_host(document: Document) -> bool:
    """Return whether a configuration of MindFormers 1.9 asks for optimizer states in host memory."""
    return read_step_settings(document).is_state_offloaded


def verify_states(document: Document, checked: CheckResult, rank: int | None, brief: bool) -> tuple[bool, str, Any]:
    """Dry run a short model with and without `optimizer.swap`, and compare where the states are and what is copied.

    Args:
        document: a configuration with `optimizer: {swap: True}`.
        checked: its check.
        rank: the rank to run; None for the first one.
        brief: leave out the dry run without `optimizer.swap`.

    Returns:
        Whether the states are on the host as asked (on CPU they always are), the report as text, and as JSON data.

    Raises:
        LaunchError: a dry run is not possible here, or the backend failed.
    """
    if is_on_cpu(document):
        return True, ON_CPU, {"ok": True, "reason": ON_CPU}
    report_status = PhaseLines(time.monotonic(), sys.stderr)
    swapped = _dry_run(document, checked, rank or 0, report_status)
    plain = None
    if not brief:
        data = document.data()
        off = document_from_data({**data, "optimizer": {**data["optimizer"], "swap": False}}, document.file)
        plain = _dry_run(off, checked, rank or 0, report_status)
    effect = find_states_effect(_describe(document, checked, rank or 0), swapped, plain)
    return effect.is_as_asked, str(effect), effect.to_json()


def find_states_effect(name: str, swapped: DryRun, plain: DryRun | None) -> StatesEffect:
    """Count the optimizer states and their copies in dry runs.

    Args:
        name: name of the rank.
        swapped: dry run with `optimizer.swap`.
        plain: dry run without it; None if there is none.
    """
    off = None if plain is None else plain.state_blocks
    return StatesEffect(
        name=name,
        num_without_swap=None if off is None else len(off),
        bytes_without_swap=None if off is None else sum(block.size_bytes for block in off),
        num_on_device=len(swapped.state_blocks),
        bytes_on_device=sum(block.size_bytes for block in swapped.state_blocks),
        num_prefetched=len(swapped.state_prefetches),
        prefetched_bytes=swapped.prefetched_state_bytes,
        num_written_back=sum(kernel.is_write_back for kernel in swapped.kernels),
    )


def _count(number: int | None, size_bytes: int | None) -> str:
    """Format a number of states with their size, as far as both are known."""
    if number is None:
        return NOTHING
    return str(number) if size_bytes is None else f"{number}, {format_bytes(size_bytes)}"


def _dry_run(document: Document, checked: CheckResult, rank: int, report_status: StatusCallback) -> DryRun:
    num_short = _num_short_layers(document, checked)
    options = DryRunOptions(ranks=(rank,), layers=(num_short,) if num_short else (), is_full=not num_short)
    (stage,) = run_stages(document, options, report_status, Path(document.file).stem).stages
    return stage.run


def _num_short_layers(document: Document, checked: CheckResult) -> int:
    """Return the number of layers with one in each stage and chunk; 0 if one of them has none."""
    cells = list(read_step_settings(document).pipeline.layout(checked.num_layers or 0).cells())
    return len(cells) if cells and all(cell.layers for cell in cells) else 0


def _describe(document: Document, checked: CheckResult, rank: int) -> str:
    num_layers = checked.num_layers or 0
    return f"rank {rank}, {_num_short_layers(document, checked) or num_layers} of {format_count(num_layers, 'layer')}"
