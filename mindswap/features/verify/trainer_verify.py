"""`mindswap verify` of a configuration of MindFormers 2.x: its entries against a dry run of its trainer."""

import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, NamedTuple

from mindswap.command_line.progress import PhaseLines
from mindswap.config.nodes import Document
from mindswap.config.problem import Problem
from mindswap.config.render import document_from_data
from mindswap.errors import LaunchError
from mindswap.features.dryrun import (
    DryRunOptions,
    TrainerDryRun,
    dry_run_trainer,
    join_stages,
    require_valid_2x,
    switched_off_2x,
    trainer_dry_run_to_json,
)
from mindswap.features.verify.trainer_effect import RECOMPUTES, SWAPS, EntryEffect, compare_entries, find_problems
from mindswap.policy.formats.mindformers2.effect import SettingsEffect, compute_effect
from mindswap.policy.formats.mindformers2.read import find_mtp_layers, find_num_layers_2x, read_pynative
from mindswap.policy.formats.mindformers2.tables import load_model
from mindswap.policy.wording import index_runs, name_indices
from mindswap.report.problems import escape, format_problems, problems_to_data
from mindswap.report.tables import NOTHING, format_table, group_equal
from mindswap.units import format_bytes

LAYER_HEADER = ("layers", "D2H copies", "H2D copies", "D2H bytes", "H2D bytes", "freed after", "back before")
ENTRY_HEADER = ("entry", "layers", "acts in", "copies", "swapped", "cells recomputed")
NOTHING_ASKED = "neither swap nor recompute: nothing to verify"
NO_COMMUNICATION = "recompute_comm is not judged: one process has no communication"


class TrainerVerification(NamedTuple):
    """Result for a configuration of MindFormers 2.x."""

    is_ok: bool
    text: str
    data: dict[str, Any]


def verify_2x(document: Document, brief: bool = False, num_cards: int | None = None) -> TrainerVerification:
    """Dry run the trainer, and compare what it swapped and recomputed with each entry of the file.

    Args:
        document: a configuration of MindFormers 2.x.
        brief: leave out the second dry run, without swap and recompute.
        num_cards: cards of the training; None takes the most that the batch sizes allow.

    Raises:
        PolicyError: the configuration has errors, or this Python has no MindFormers 2.x.
        LaunchError: the dry run is not possible or failed.
    """
    require_valid_2x(document)
    settings = read_pynative(document, None)
    effect = compute_effect(settings, load_model(document, find_num_layers_2x(document), find_mtp_layers(document)))
    options = (*(SWAPS if settings.is_swap_enabled else ()), *RECOMPUTES)
    if not any(settings.of(option) for option in options):
        return TrainerVerification(True, NOTHING_ASKED, {"ok": True, "entries": [], "layers": []})
    report_status = PhaseLines(time.monotonic(), sys.stderr)
    report = dry_run_trainer(document, DryRunOptions(), report_status, "the file", num_cards=num_cards)
    if report.stages:
        report = replace(report, step=join_stages(report.stages))
    if not report.step.uses_stand_in:
        raise LaunchError(
            "verify: HyperParallel does not tell what it copies and recomputes; mindswap's stand-in for it does\n"
            "    fix:     a Python without hyper_parallel, or mindswap dryrun for the memory with HyperParallel"
        )
    off = None
    if not brief:
        plain = document_from_data(switched_off_2x(document.data()), document.file)
        off = dry_run_trainer(plain, DryRunOptions(), report_status, "without both", num_cards=num_cards)
    entries = compare_entries(effect, report.step)
    problems = find_problems(document, effect, entries, num_cards)
    return make_verification(effect, entries, problems, report, off)


def make_verification(
    effect: SettingsEffect,
    entries: tuple[EntryEffect, ...],
    problems: tuple[Problem, ...],
    report: TrainerDryRun,
    off: TrainerDryRun | None,
) -> TrainerVerification:
    """Return text and JSON data; exit code 1 with any problem, and where mindswap's swap was not as predicted.

    Args:
        effect: the settings.
        entries: what each entry did.
        problems: entries without effect.
        report: the dry run of the file.
        off: the dry run without swap and recompute; None without one.
    """
    swap_report = report.step.own_swap
    is_ok = not problems and (swap_report is None or bool(swap_report["is_as_predicted"]))
    notes = (*report.notes, *([NO_COMMUNICATION] if effect.settings.of("comm") else []))
    step = report.step
    blocks = [format_table(ENTRY_HEADER, [_entry_row(entry) for entry in entries])]
    if step.layer_copies:
        blocks.append(format_table(LAYER_HEADER, _layer_rows(report)))
    blocks.append(_memory_line(report, off))
    if problems:
        blocks.append(format_problems(problems))
    verdict = "follows the file" if is_ok else "does NOT follow the file"
    lines = [*(f"note: {escape(note)}" for note in notes), f"the trainer of MindFormers {verdict}"]
    text = "\n\n".join([*blocks, "\n".join(lines)])
    data = {
        "ok": is_ok,
        "entries": [_entry_to_json(entry) for entry in entries],
        "layers": [vars(copies) for copies in step.layer_copies],
        "own_swap": swap_report,
        **problems_to_data(problems),
        "notes": list(notes),
        "dry_run": trainer_dry_run_to_json(report),
        "without": trainer_dry_run_to_json(off) if off is not None else None,
    }
    return TrainerVerification(is_ok, text, data)


def _entry_row(entry: EntryEffect) -> list[str]:
    pattern = entry.target.pattern if entry.target.option in SWAPS else None  # of the others it is in the path
    name = entry.target.path if pattern is None else f"{entry.target.path} {pattern}"
    is_swap = entry.target.option in SWAPS
    copies = str(entry.num_out) if is_swap and entry.num_out is not None else NOTHING
    size = format_bytes(entry.out_bytes) if is_swap and entry.out_bytes is not None else NOTHING
    cells = NOTHING if is_swap else str(entry.num_recomputed)
    acting = ", ".join(index_runs(entry.acting_layers)) or "none"
    return [escape(name), ", ".join(index_runs(entry.layers)), acting, copies, size, cells]


def _layer_rows(report: TrainerDryRun) -> list[list[str]]:
    """Return a row for equal layers; layers at whose ends something happens are written relative to the layer."""

    def moment(phase: str, layer: int, trigger_layer: int | None) -> str:
        if trigger_layer is None:
            return NOTHING
        return f"{phase} of " + ("the layer" if trigger_layer == layer else f"layer + {trigger_layer - layer}")

    all_copies = report.step.layer_copies
    cells = [
        (
            str(copies.num_out),
            str(copies.num_back),
            format_bytes(copies.out_bytes),
            format_bytes(copies.back_bytes),
            moment("forward", copies.layer, copies.released_by),
            moment("backward", copies.layer, copies.fetched_by),
        )
        for copies in all_copies
    ]
    groups = group_equal(cells, lambda row: row, [copies.layer for copies in all_copies])
    return [[name_indices("layer", layers), *row] for layers, row in groups]


def _memory_line(report: TrainerDryRun, off: TrainerDryRun | None) -> str:
    step = report.step
    if report.stages:
        return "\n".join(_stage_lines(report, off))
    kept, peak = format_bytes(step.kept_bytes), format_bytes(step.used_peak_bytes)
    if off is None:
        return f"kept from forward to backward: {kept}; peak of the step: {peak}"
    before, highest = format_bytes(off.step.kept_bytes), format_bytes(off.step.used_peak_bytes)
    return f"kept from forward to backward: {kept}, {before} without; peak of the step: {peak}, {highest} without"


def _stage_lines(report: TrainerDryRun, off: TrainerDryRun | None) -> Iterator[str]:
    """Yield the memory of each pipeline stage."""
    for number, step in enumerate(report.stages):
        plain = off.stages[number] if off is not None else None
        sizes = {"kept in flight": "kept_bytes", "peak": "used_peak_bytes"}
        texts = [
            f"{name} {format_bytes(getattr(step, key))}"
            + (f", {format_bytes(getattr(plain, key))} without" if plain is not None else "")
            for name, key in sizes.items()
        ]
        yield f"pipeline stage {step.stage}: {'; '.join(texts)}"


def _entry_to_json(entry: EntryEffect) -> dict[str, Any]:
    target = entry.target
    return {
        "entry": target.path,
        "option": target.option,
        "pattern": target.pattern,
        "line": target.location.line,
        "column": target.location.column,
        "ok": entry.acts,
        "layers": list(entry.layers),
        "acts_in": list(entry.acting_layers),
        "num_copies": entry.num_out,
        "swapped_bytes": entry.out_bytes,
        "num_recomputed_cells": entry.num_recomputed,
        "without_effect": [{"reason": reason, "layers": list(layers)} for reason, layers in entry.reasons],
    }


def refuse_options(document: Document, **option_values: object) -> None:
    """Refuse options that have a meaning for the compiled graph only.

    Raises:
        LaunchError: with their names.
    """
    if names := [f"--{name}" for name, value in option_values.items() if value is not None]:
        raise LaunchError(
            f"{', '.join(names)}: of MindFormers 1.9 only (graph mode); {document.file} is of MindFormers 2.x\n"
            "    allowed: --brief, --cards, --json\n"
            "    fix:     the log of mindswap run says whether MindFormers set what the file asks"
        )
