"""Every module has its mirrored test file, `tests/cost/test_x.py` for `mindswap/cost/x.py`, or a reason not to."""

import ast
from fnmatch import fnmatch
from pathlib import Path

import pytest

import mindswap
from mindswap.mindformers_2x.rules import find_rules

PACKAGE = Path(mindswap.__file__).parent
TESTS = Path(__file__).parent

DATA = "it holds data and decides nothing"
START = "it only starts what is tested"
# Module or pattern -> the tests that go through it, as paths below `tests/`, or a reason. Needing MindSpore is none.
ELSEWHERE = {
    "__main__": START,
    "version": DATA,
    # The way into MindFormers: what a training or a compile does with all of it together.
    "adapters/build": ["adapters/test_example_inputs.py", "commands/test_inspect.py"],
    "adapters/callbacks": ["adapters/test_training.py"],
    "adapters/cpu": ["adapters/test_training.py"],
    "adapters/entry": ["adapters/test_training.py"],
    "adapters/execute": ["adapters/test_executions.py"],
    "adapters/interleave": ["adapters/test_collectives.py"],
    "adapters/kernels": ["adapters/test_executions.py"],
    "adapters/mindformers": ["commands/test_inspect.py", "adapters/test_capture_rank.py"],
    "adapters/mindrecord": ["commands/test_prepare_data.py"],
    "adapters/mindspore": ["session/test_network.py", "graph/test_load.py"],
    "adapters/network": ["session/test_network.py"],
    "adapters/plugin": ["adapters/test_training.py", "adapters/test_config.py"],
    "adapters/pynative/*": ["adapters/pynative/test_swap.py", "adapters/pynative/test_judge.py"],
    "adapters/rank_code": ["adapters/test_capture_rank.py"],
    "adapters/replaced": ["adapters/test_communication.py", "adapters/test_own_recompute.py"],
    "adapters/stand_ins": ["adapters/test_executions.py"],
    "adapters/step": ["session/test_capture_step.py"],
    "adapters/versions/*": ["adapters/test_installed.py"],  # `make matrix` runs each with its own MindFormers
    "adaptive/attempt_files": ["adaptive/test_command.py"],
    "adaptive/events": ["adaptive/test_decide.py"],
    "adaptive/model": ["adaptive/test_state.py", "adaptive/test_decide.py"],
    "adaptive/planner_child": ["adaptive/test_planner.py"],
    "adaptive/saved_steps": ["adaptive/test_checkpoints.py"],
    "adaptive/summary": ["commands/test_status.py"],
    "adaptive/workers": ["adaptive/test_supervise.py"],
    "check/rules/*": ["check/test_check.py"],  # which wants a test file of its own for each rule
    "check/context": ["check/rules/test_overlap.py", "check/rules/test_recomputed_user.py"],
    "commands/convert_megatron": ["commands/test_convert.py"],
    "commands/convert_versions": ["commands/test_pynative_text.py"],
    "commands/converted": ["commands/test_convert.py"],
    "commands/launcher": ["scripts/test_msrun_launch.py"],
    "commands/options": ["commands/test_json.py"],
    "commands/proof_children": ["commands/test_prove.py"],
    "commands/proof_runs": ["commands/test_prove.py"],
    "commands/proving": ["commands/test_prove.py"],
    "commands/send_back": ["commands/test_proof_results.py"],
    "config/device_memory": ["check/rules/test_max_device_memory.py"],
    "config/mode": ["check/rules/test_context_mode.py"],
    "config/sequences": ["check/rules/test_sequence_pieces.py", "config/test_step.py"],
    "config/weight_sharding": ["config/test_step.py"],
    "cost/figures": ["cost/test_settings.py"],
    "cost/hardware": DATA,
    "cost/measured": ["cost/test_kernel_samples.py"],
    "cost/profile": ["cost/test_profile_files.py"],
    "cost/table": ["cost/test_calibration_file.py", "simulate/test_gathered_weights.py"],
    "doctor/*": ["doctor/test_faults.py"],
    "document/builder": ["document/test_parse.py"],
    "document/edit": ["document/test_sections.py"],
    "document/loadable": ["document/test_parse.py"],
    "document/nodes": ["document/test_parse.py", "document/test_plain_data.py", "mindformers_2x/test_convert.py"],
    "convert/sections": ["convert/test_stage_form.py"],
    "document/rules": ["check/test_check.py"],
    "document/problem": ["report/test_problems.py"],
    "execute/compare": ["execute/test_run.py"],
    "execute/memory": ["execute/test_run.py"],
    "graph/codec": ["graph/test_cache.py"],
    "graph/load_code": ["adapters/test_executions.py"],
    "graph/places": ["report/test_effect.py"],
    "graph/ranks/split_*": ["graph/ranks/test_sharding.py"],
    "graph/ranks/splits": ["graph/ranks/test_sharding.py"],
    "graph/ranks/stage": ["graph/ranks/test_sharding.py"],
    "graph/ranks/strategies": ["graph/ranks/test_sharding.py"],
    "launch/__main__": START,
    "launch/guardian": ["launch/test_lifeline.py"],
    "launch/processes": ["launch/test_lifeline.py"],
    "launch/signals": ["scripts/test_msrun_launch.py"],
    "launch/training": ["commands/test_run.py"],
    "logs/model": DATA,
    "logs/tail": ["adaptive/test_watch.py"],
    "megatron/modules": ["megatron/test_policy.py"],
    "megatron/options": ["commands/test_convert.py", "megatron/test_policy.py"],
    "megatron/placement": ["megatron/test_policy.py"],
    "megatron/validity": ["megatron/test_policy.py"],
    "mindformers_2x/check": ["mindformers_2x/test_mistakes.py", "mindformers_2x/test_upstream.py"],
    "mindformers_2x/effect": ["mindformers_2x/test_upstream.py"],
    "mindformers_2x/form": ["commands/test_convert.py", "check/rules/test_context_mode.py"],
    "mindformers_2x/log_lines": ["mindformers_2x/test_upstream.py"],
    "mindformers_2x/read": ["mindformers_2x/test_upstream.py", "mindformers_2x/test_mistakes.py"],
    "mindformers_2x/renaming": ["mindformers_2x/test_convert.py"],
    "mindformers_2x/replace": ["mindformers_2x/test_convert.py"],
    "mindformers_2x/rule_context": DATA,
    "mindformers_2x/rules/*": ["mindformers_2x/test_mistakes.py"],  # each with its place; see below
    "mindformers_2x/settings": ["mindformers_2x/test_upstream.py"],
    "mindformers_2x/tables": ["mindformers_2x/test_mistakes.py", "commands/test_pynative_text.py"],
    "plan/bound/*": ["plan/test_bound.py"],
    "plan/candidates": ["plan/test_real_capture.py", "simulate/test_gathered_weights.py"],
    "plan/evaluate": ["plan/test_planner.py"],
    "plan/problem": DATA,
    "plan/result": ["plan/test_write.py"],
    "plan/solvers/*": ["plan/test_solvers.py"],
    "plan/stages": ["plan/test_planner.py"],
    "plan/catalog": ["plan/test_bound.py", "plan/test_real_capture.py"],
    "plan/step_space": ["plan/test_bound.py", "plan/test_real_capture.py"],
    "plan/sweep": ["plan/test_curve.py"],
    "policy/cell_tree": ["convert/test_stage_form.py"],
    "policy/read": ["check/test_check_shape.py"],
    "policy/read_parts": ["check/test_check_shape.py", "check/rules/test_wrong_type.py"],
    "policy/read_recompute": ["check/test_check_shape.py", "check/rules/test_output_recompute.py"],
    "policy/schema": ["check/rules/test_wrong_type.py"],
    "policy/settings": ["check/test_check_shape.py"],
    "policy/unread": [
        "check/rules/test_wrong_type.py",
        "check/rules/test_unknown_key.py",
        "check/rules/test_missing_key.py",
    ],
    "prove/model": ["prove/test_checks.py"],
    "pynative/by_tensor": ["commands/test_convert_tensors.py"],
    "pynative/ledger": ["pynative/test_schedule.py"],
    "pynative/trace": ["pynative/test_schedule.py", "pynative/test_decide.py"],
    "report/answer": ["commands/test_json.py"],
    "report/calibration": ["commands/test_calibrate.py"],
    "report/device_figures": ["report/simulation/test_text.py"],
    "report/execution": ["commands/test_verify.py"],
    "report/explain": ["commands/test_explain.py"],
    "report/figures": ["commands/test_simulate.py"],
    "report/html_parts": ["report/simulation/test_html.py"],
    "report/logs": ["commands/test_verify_log.py"],
    "report/plan_text": ["commands/test_plan.py"],
    "report/pynative": ["commands/test_pynative_text.py"],
    "report/simulation/detail": ["report/simulation/test_bars.py"],
    "report/simulation/page_data": ["report/simulation/test_html.py"],
    "report/simulation/style": ["report/simulation/test_html.py"],
    "report/simulation/words": ["report/simulation/test_text.py"],
    "report/swap_run": ["pynative/test_report.py"],
    "report/tradeoff_plots": ["report/simulation/test_plots.py"],
    "session/capture": ["session/test_skew.py", "session/test_step.py"],
    "session/device": ["session/test_budget.py"],
    "session/execute": ["commands/test_verify.py"],
    "session/inspect": ["commands/test_inspect.py"],
    "session/plan": ["commands/test_plan.py", "session/test_budget.py"],
    "session/recorded": ["commands/test_trace.py"],
    "session/run": ["session/test_step.py"],
    "session/trees": ["commands/test_explain.py"],
    "session/verify": ["commands/test_verify.py", "commands/test_verify_faults.py"],
    "simulate/block_parts": DATA,
    "simulate/build": ["simulate/test_blocks.py", "simulate/test_placing.py"],
    "simulate/captured": ["simulate/test_step_model.py"],
    "simulate/compiled_layers": ["simulate/test_step_model.py"],
    "simulate/host": ["simulate/test_summary.py"],
    "simulate/program": ["benchmarks/reference/test_program_check.py"],
    "simulate/reading": ["simulate/test_blocks.py"],
    "simulate/schedules/*": ["simulate/schedules/test_orders.py", "simulate/schedules/test_formulas.py"],
    "simulate/stage_tensors": ["simulate/test_placing.py"],
    "simulate/state": ["simulate/test_engine.py"],
    "simulate/summary_model": ["simulate/test_summary.py"],
    "simulate/timeline": ["simulate/test_engine.py"],
    "stage/applied": ["convert/test_stage_form.py"],
}


def modules() -> dict[str, Path]:
    """Every module that is no `__init__`, by its name below the package."""
    paths = sorted(PACKAGE.rglob("*.py"))
    return {path.relative_to(PACKAGE).with_suffix("").as_posix(): path for path in paths if path.name != "__init__.py"}


def has_mirror(name: str) -> bool:
    folder, _, last = name.rpartition("/")
    return (TESTS / folder / f"test_{last}.py").exists()


def reason_of(name: str) -> list[str] | str | None:
    """Of a module; its own line goes before a pattern's."""
    if name in ELSEWHERE:
        return ELSEWHERE[name]
    return next((reason for pattern, reason in ELSEWHERE.items() if fnmatch(name, pattern)), None)


@pytest.mark.parametrize("name", modules())
def test_a_module_has_its_test_file_or_a_reason(name):
    """A new module: write its test file; only if it is tested through another one, a line in `ELSEWHERE`."""
    assert has_mirror(name) or reason_of(name) is not None


def test_reasons_are_true():
    names = modules()
    for pattern, reason in ELSEWHERE.items():
        meant = [name for name in names if fnmatch(name, pattern)]
        assert meant, f"{pattern}: there is no such module"
        if isinstance(reason, list):
            assert [file for file in reason if not (TESTS / file).exists()] == []
        if reason == DATA:
            assert not any(_decides(names[name]) for name in meant), pattern


def _decides(path: Path) -> bool:
    """Whether a function of a module has a branch or a loop; a property of one expression has none."""
    tree = ast.parse(path.read_text("utf-8"))
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    return any(isinstance(node, (ast.If, ast.For, ast.While)) for function in functions for node in ast.walk(function))


def test_every_rule_for_2x_has_a_mistake_with_its_place():
    text = (TESTS / "mindformers_2x/test_mistakes.py").read_text("utf-8")
    rules = [rule.removeprefix("pynative-") for rule in find_rules()]
    assert [rule for rule in rules if f"pynative-{rule}" not in text and f'"{rule}"' not in text] == []
