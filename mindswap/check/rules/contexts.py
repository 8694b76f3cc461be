"""Rule for settings of MindSpore's context at which MindSpore stops."""

from collections.abc import Callable, Iterator
from typing import Any

from mindswap.check.context import Context
from mindswap.check.refusals import Refusal, Values, find_refusals, is_positive, typed
from mindswap.config.problem import Level
from mindswap.config.rules import Finding, rule
from mindswap.config.step import GRAPH, PYNATIVE
from mindswap.files import package_data

JIT, ASCEND, STRATEGIES, FUSION = (
    "context.jit_config", "context.ascend_config", "parallel.strategy_ckpt_config", "parallel.comm_fusion",
)  # fmt: skip
# What `set_ascend_config` of mindspore/context.py takes: values, or types.
ASCEND_VALUES: dict[str, tuple[Any, ...]] = {
    "precision_mode": (),  # MindFormers hands it to another function
    "jit_compile": (True, False),
    "atomic_clean_policy": (0, 1),
    "matmul_allow_hf32": (True, False),
    "conv_allow_hf32": (True, False),
    "op_precision_mode": (str,),
    "ge_options": (dict,),
    "parallel_speed_up_json_path": (str,),
    "host_scheduling_max_threshold": (int,),
    "cur_step_num": (int,),
    "save_checkpoint_steps": (int,),
    "need_ckpt": (bool,),
    "last_triggered_step": (int,),
    "hccl_watchdog": (bool,),
    "topo_order": (dict,),
    "op_debug_option": (str,),
}
FUSIONS = {"allreduce": ("auto", "size", "index"), "allgather": ("auto", "size"), "reducescatter": ("auto", "size")}


def _is_ascend_value(key: str, value: Any) -> bool:
    """Return whether MindSpore takes a value of `ascend_config`."""
    allowed = ASCEND_VALUES.get(key, ())
    if not allowed or not isinstance(allowed[0], type):
        return not allowed or value in allowed
    return isinstance(value, allowed[0]) or (value is None and allowed[0] is str)


def _wrong_ascend(v: Values) -> list[str]:
    return [key for key, value in v(ASCEND, {}).items() if not _is_ascend_value(key, value)]


def _unknown_parallel(v: Values) -> list[str]:
    """Return the keys of `parallel` that MindSpore does not take."""
    return sorted(set(map(str, v("parallel", {}))) - set(package_data("check/sections.yaml")["parallel"]))


def _fusions(is_wrong: Callable[[str, Any], bool]) -> Callable[[Values], bool]:
    """Return the condition that one of the fusions of communication is wrong."""
    return lambda v: any(is_wrong(name, fusion) for name, fusion in v(FUSION, {}).items() if name in FUSIONS)


def _unknown(name: str, path: str, known: frozenset[str]) -> Refusal:
    """Return the refusal of keys of a section that MindSpore does not know."""

    def unknown(v: Values) -> list[str]:
        section = v(path)
        return sorted(set(map(str, section)) - known) if isinstance(section, dict) else []

    return Refusal(
        name,
        path,
        lambda v: bool(unknown(v)),
        lambda v: f"MindSpore knows no {', '.join(unknown(v))} there",
        ", ".join(sorted(known)),
        lambda v: f"delete {', '.join(unknown(v))}",
    )


REFUSALS = (
    Refusal(
        "mode",
        "context.mode",
        # With swap on `context-mode` reports it.
        lambda v: not v.is_swap_enabled and v("context.mode", 0) not in (*GRAPH, *PYNATIVE),
        "MindFormers knows no such mode",
        "0 or GRAPH_MODE, 1 or PYNATIVE_MODE",
        "{key}: 0",
    ),
    Refusal(
        "memory-level",
        "context.memory_optimize_level",
        lambda v: not v.is_swap_enabled and v("context.memory_optimize_level", "O0") not in ("O0", "O1"),
        "MindSpore knows no such level",
        "O0, O1",
        "{key}: O0",
    ),
    typed("context.max_call_depth", is_positive, "an integer, 1 or more", "{key}: 10000", takes_null=True),
    _unknown("jit-keys", JIT, frozenset({"jit_level", "infer_boost"})),
    Refusal(
        "jit-level",
        f"{JIT}.jit_level",
        lambda v: not v.is_swap_enabled and v(f"{JIT}.jit_level", "O0") not in ("O0", "O1", "O2"),
        "MindSpore knows no such level",
        "O0, O1, O2",
        "{key}: O1",
    ),
    Refusal(
        "jit-boost",
        f"{JIT}.infer_boost",
        lambda v: v(f"{JIT}.infer_boost", "on") not in ("on", "off"),
        "MindSpore takes on or off",
        "'on', 'off'",
        "{key}: 'off'",
    ),
    Refusal(
        "jit-boost-level",
        f"{JIT}.infer_boost",
        lambda v: v(f"{JIT}.infer_boost") == "on" and v(f"{JIT}.jit_level") in ("O1", "O2"),
        "MindSpore takes it with jit_level: O0 only",
        "'off'",
        "{key}: 'off'",
    ),
    _unknown("ascend-keys", ASCEND, frozenset(ASCEND_VALUES)),
    Refusal(
        "ascend-values",
        ASCEND,
        lambda v: bool(_wrong_ascend(v)),
        lambda v: f"MindSpore stops at {', '.join(_wrong_ascend(v))}",
        lambda v: "; ".join(
            f"{key}: {' or '.join(getattr(value, '__name__', str(value)) for value in ASCEND_VALUES[key])}"
            for key in _wrong_ascend(v)
        ),
        lambda v: f"delete {', '.join(_wrong_ascend(v))}",
    ),
    Refusal(
        "parallel-keys",
        "parallel",
        lambda v: bool(_unknown_parallel(v)),
        lambda v: f"MindSpore knows no {', '.join(_unknown_parallel(v))} there",
        fix=lambda v: f"delete {', '.join(_unknown_parallel(v))}",
    ),
    Refusal(
        "accumulation-step",
        "parallel.grad_accumulation_step",
        lambda v: v("parallel.grad_accumulation_step") > 1,
        "MindSpore 2.9 does not take it",
        "1",
        "runner_config.gradient_accumulation_steps",
    ),
    typed("parallel.pipeline_segments", is_positive, "an integer, 1 or more", "{key}: 1"),
    typed("parallel.pipeline_result_broadcast", lambda value: isinstance(value, bool), "True or False", "{key}: False"),
    typed("parallel.loss_repeated_mean", lambda value: isinstance(value, bool), "True or False", "{key}: True"),
    typed("parallel.force_fp32_communication", lambda value: isinstance(value, bool), "True or False", "{key}: False"),
    typed(
        "parallel.communi_parallel_mode",
        lambda value: value in ("all_group_parallel", "same_server_group_parallel", "no_group_parallel"),
        "all_group_parallel, same_server_group_parallel, no_group_parallel",
        "{key}: all_group_parallel",
    ),
    typed(
        "parallel.optimizer_weight_shard_aggregated_save",
        lambda value: isinstance(value, bool),
        "True or False",
        "{key}: False",
    ),
    typed(STRATEGIES, lambda value: isinstance(value, dict), "a mapping", "delete it"),
    _unknown("strategy-keys", STRATEGIES, frozenset({"load_file", "save_file", "only_trainable_params"})),
    typed(f"{STRATEGIES}.load_file", lambda value: isinstance(value, str), "a file", "delete it"),
    typed(f"{STRATEGIES}.save_file", lambda value: isinstance(value, str), "a file", "{key}: ./ckpt_strategy.ckpt"),
    typed(
        f"{STRATEGIES}.only_trainable_params",
        lambda value: isinstance(value, bool),
        "True or False",
        "{key}: False",
    ),
    _unknown("fusion-keys", FUSION, frozenset({"openstate", *FUSIONS})),
    typed(f"{FUSION}.openstate", lambda value: isinstance(value, bool), "True or False", "{key}: True"),
    Refusal(
        "fusion-form",
        FUSION,
        _fusions(lambda name, fusion: not isinstance(fusion, dict)),
        "one of the fusions is no mapping",
        "{mode: auto, config: None}",
    ),
    Refusal(
        "fusion-incomplete",
        FUSION,
        _fusions(lambda name, fusion: not {"mode", "config"} <= set(fusion)),
        "one of the fusions lacks mode or config",
        "{mode: auto, config: None}",
    ),
    Refusal(
        "fusion-mode",
        FUSION,
        _fusions(lambda name, fusion: "mode" in fusion and fusion["mode"] not in FUSIONS[name]),
        "one of the fusions has a mode that MindSpore does not know",
        "auto, size; index for allreduce",
    ),
    Refusal(
        "fusion-threshold",
        FUSION,
        _fusions(lambda name, fusion: fusion.get("mode") == "size" and fusion.get("config") < 0),
        "one of the fusions has a size below 0",
        "config: 0 or more (MB)",
    ),
)


@rule(Level.ERROR)
def context_refused(context: Context) -> Iterator[Finding]:
    """Settings of `context` and `parallel` at which MindSpore stops: unknown keys, values that it does not take.

    All conditions are in docs/internals/upstream_checks.md, each with the place that tests it.

    PASS: context: {jit_config: {jit_level: O1}}
    FAIL: context: {jit_config: {jit_level: O3}}
    """
    yield from find_refusals(context, REFUSALS)
