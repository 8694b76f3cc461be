"""Rule for settings of MindSpore's context at which MindSpore stops."""

from collections.abc import Callable, Collection, Iterator
from typing import Any

from mindswap.config.findings import Finding, rule
from mindswap.config.problem import Level
from mindswap.config.step_settings import GRAPH, PYNATIVE
from mindswap.files import package_data
from mindswap.rules.context import Context
from mindswap.rules.parts import Part
from mindswap.rules.refusals import Refusal, find_refusals, is_bool, is_number, is_positive, of_parts, typed
from mindswap.rules.values import Values

JIT, ASCEND, STRATEGIES, FUSION = (
    "context.jit_config", "context.ascend_config", "parallel.strategy_ckpt_config", "parallel.comm_fusion",
)  # fmt: skip
# Values or types that `set_ascend_config` of mindspore/context.py accepts.
ASCEND_VALUES: dict[str, tuple[Any, ...]] = {
    "precision_mode": (),  # MindFormers passes it to another function
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
FUSION_FORM, FUSION_FIX = "{mode: auto, config: null}", "{key}: {mode: auto, config: null}"
FUSIONS = {"allreduce": ("auto", "size", "index"), "allgather": ("auto", "size"), "reducescatter": ("auto", "size")}


def _is_ascend_value(key: str, value: Any) -> bool:
    """Return whether MindSpore takes a value of `ascend_config`."""
    allowed = ASCEND_VALUES.get(key, ())
    if not allowed or not isinstance(allowed[0], type):
        return not allowed or value in allowed
    return isinstance(value, allowed[0]) or (value is None and allowed[0] is str)


def _wrong_ascend(v: Values) -> list[Part]:
    """Return the values of `ascend_config` that MindSpore does not take."""
    return [
        Part((key,), allowed=" or ".join(getattr(value, "__name__", str(value)) for value in ASCEND_VALUES[key]))
        for key, value in v(ASCEND, {}).items()
        if not _is_ascend_value(key, value)
    ]


def _fusion(
    name: str, is_wrong: Callable[[str, Any], bool], message: str, allowed: str, fix: str = "", key: str = ""
) -> Refusal:
    """Return the refusal of one of the fusions of communication; `key` is that of the wrong value in it."""

    def parts(v: Values) -> list[Part]:
        fusions = [(kind, fusion) for kind, fusion in v(FUSION, {}).items() if kind in FUSIONS]
        return [Part((kind, key) if key else (kind,)) for kind, fusion in fusions if is_wrong(kind, fusion)]

    return of_parts(f"fusion-{name}", FUSION, parts, message, allowed, fix)


def _unknown(name: str, path: str, known_keys: Collection[str], allowed: str = "") -> Refusal:
    """Return the refusal of keys of a section that MindSpore does not know."""

    def parts(v: Values) -> list[Part]:
        section = v(path)
        return (
            [Part((key,), is_key=True) for key in section if key not in known_keys] if isinstance(section, dict) else []
        )

    return of_parts(
        name, path, parts, "MindSpore does not know this key", allowed or ", ".join(sorted(known_keys)), "delete it"
    )


def _has_threshold(fusion: Any) -> bool:
    return isinstance(fusion, dict) and fusion.get("mode") == "size" and is_number(fusion.get("config"))


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
    of_parts("ascend-values", ASCEND, _wrong_ascend, "MindSpore stops at this value", fix="delete it"),
    _unknown(
        "parallel-keys", "parallel", package_data("check/sections.yaml")["parallel"], "keys of MindSpore's context"
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
    typed("parallel.pipeline_result_broadcast", is_bool, "True or False", "{key}: False"),
    typed("parallel.loss_repeated_mean", is_bool, "True or False", "{key}: True"),
    typed("parallel.force_fp32_communication", is_bool, "True or False", "{key}: False"),
    typed(
        "parallel.communi_parallel_mode",
        lambda value: value in ("all_group_parallel", "same_server_group_parallel", "no_group_parallel"),
        "all_group_parallel, same_server_group_parallel, no_group_parallel",
        "{key}: all_group_parallel",
    ),
    typed(
        "parallel.optimizer_weight_shard_aggregated_save",
        is_bool,
        "True or False",
        "{key}: False",
    ),
    typed(STRATEGIES, lambda value: isinstance(value, dict), "a mapping", "delete it"),
    _unknown("strategy-keys", STRATEGIES, frozenset({"load_file", "save_file", "only_trainable_params"})),
    typed(f"{STRATEGIES}.load_file", lambda value: isinstance(value, str), "a file", "delete it"),
    typed(f"{STRATEGIES}.save_file", lambda value: isinstance(value, str), "a file", "{key}: ./ckpt_strategy.ckpt"),
    typed(
        f"{STRATEGIES}.only_trainable_params",
        is_bool,
        "True or False",
        "{key}: False",
    ),
    _unknown("fusion-keys", FUSION, frozenset({"openstate", *FUSIONS})),
    typed(f"{FUSION}.openstate", is_bool, "True or False", "{key}: True"),
    _fusion("form", lambda kind, fusion: not isinstance(fusion, dict), "it is no mapping", FUSION_FORM, FUSION_FIX),
    _fusion(
        "incomplete",
        lambda kind, fusion: isinstance(fusion, dict) and not {"mode", "config"} <= set(fusion),
        "it lacks mode or config",
        FUSION_FORM,
        FUSION_FIX,
    ),
    _fusion(
        "mode",
        lambda kind, fusion: isinstance(fusion, dict) and "mode" in fusion and fusion["mode"] not in FUSIONS[kind],
        "MindSpore does not know this mode",
        "auto, size; index for allreduce",
        "{key}: auto",
        "mode",
    ),
    _fusion(
        "threshold",
        lambda kind, fusion: _has_threshold(fusion) and fusion["config"] < 0,
        "a size is 0 or more",
        "0 or more (MB)",
        "{key}: 64",
        "config",
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
