"""A stand-in for the planner: a few policies written by hand, with peaks and times written beside them."""

import hashlib
from dataclasses import dataclass
from pathlib import Path

from mindswap.config.section_edits import rewrite_section
from mindswap.runtime.attempt.model import Corrections, NothingFits, TrainingPlan

NO_RECOMPUTE = {"recompute": False, "select_recompute": False, "select_comm_recompute": False}


@dataclass(frozen=True)
class HandPolicy:
    """Sections of the YAML, and what the stand-in says they need."""

    name: str
    swap_config: dict
    recompute_config: dict
    peak_bytes: int
    step_time_ns: int


def keep_all(peak_bytes: int, step_time_ns: int) -> HandPolicy:
    return HandPolicy("keep-all", {"swap": False}, NO_RECOMPUTE, peak_bytes, step_time_ns)


def swap_default(peak_bytes: int, step_time_ns: int) -> HandPolicy:
    return HandPolicy("swap-default", {"swap": True, "default_prefetch": 1}, NO_RECOMPUTE, peak_bytes, step_time_ns)


def recompute_all(peak_bytes: int, step_time_ns: int) -> HandPolicy:
    sections = {**NO_RECOMPUTE, "recompute": True}
    return HandPolicy("recompute-all", {"swap": False}, sections, peak_bytes, step_time_ns)


def planner_of(policies):
    """The fastest policy whose corrected peak fits."""

    def plan(config_path: Path, budget_bytes: int, corrections: Corrections):
        def peak(policy):
            return policy.peak_bytes + corrections.static_offset_bytes

        fitting = [policy for policy in policies if peak(policy) <= budget_bytes]
        if not fitting:
            return NothingFits(min(map(peak, policies)))
        best = min(fitting, key=lambda policy: policy.step_time_ns)
        text = config_path.read_text("utf-8")
        text = rewrite_section(text, "swap_config", best.swap_config)
        text = rewrite_section(text, "recompute_config", best.recompute_config)
        key = f"{best.name}-{hashlib.sha256(text.encode()).hexdigest()[:6]}"
        step_ns = best.step_time_ns * 1000 // corrections.compute_permille
        return TrainingPlan(key, text, budget_bytes, peak(best), step_ns, corrections=corrections)

    return plan
