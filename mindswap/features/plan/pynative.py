"""Plans for configurations of MindFormers 2.x. The step comes from a trace; the policy is written as 2.x sections."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from mindswap.config.nodes import Document, show
from mindswap.config.parse import parse_document
from mindswap.config.problem import Problem
from mindswap.config.section_edits import rewrite_section
from mindswap.config.step_settings import read_step_settings
from mindswap.errors import PlanError, PolicyError
from mindswap.features.simulate import LoadedStep
from mindswap.planner.problem import Plan
from mindswap.planner.write import plan_comment
from mindswap.policy.formats.mindformers2.read import find_mtp_layers, find_num_layers_2x
from mindswap.policy.formats.mindformers2.tables import ConfigFormat, find_format, wrong_form_problem
from mindswap.policy.model import Policy, union_layers
from mindswap.policy.wording import index_runs
from mindswap.report.problems import format_problems
from mindswap.rules.checker import PynativeCheck, check_pynative
from mindswap.simulator.cost.device_costs import find_costs
from mindswap.simulator.layer_swap_2x import LayerSwapModel2x
from mindswap.simulator.step_model import StepModel
from mindswap.steps.recorded import capture_of, read_trace

# Sizes that must be equal in the file and in the trace: key of `model` in 2.x -> keys of `model.model_config` in 1.9.
SIZES = {
    "hidden_size": ("hidden_size",),
    "intermediate_size": ("intermediate_size",),
    "num_attention_heads": ("num_attention_heads", "num_heads"),
    "vocab_size": ("vocab_size",),
}


def load_step_2x(document: Document, trace: str | None, device: str | None, overrides: dict[str, str]) -> LoadedStep:
    """Load the step of a MindFormers 2.x configuration from a trace of the same network.

    Args:
        document: the configuration.
        trace: file made by `mindswap trace`; None raises an error that explains how to make one.
        device: name or file of the device; default is that of `mindswap:` in the configuration, then in the trace.
        overrides: device properties to replace, by name.

    Raises:
        PlanError: the trace is of another network.
        PolicyError: the configuration has errors, or there is no trace.
        DataError: the trace cannot be read.
        CostError: the device is unknown.
    """
    if trace is None:
        raise PolicyError([_trace_problem(document)])
    checked = check_pynative(document)
    if checked.errors:
        raise PolicyError(checked.problems)
    recorded, source = read_trace(trace)
    require_same_model(document, source, recorded.trace.num_layers, trace)
    costs = find_costs([document, source], device, overrides)
    name, other_name = _architecture(document), _architecture(source)
    caveats = []
    if name and other_name and name != other_name:
        caveats.append(f"the trace is of {other_name}, this file of {name}: equal sizes, another model")
    if checked.effect.settings.is_comm_enabled:
        caveats.append("recompute_comm stays as it is: a trace of one rank has no communication")
    graph_model = StepModel(capture_of(recorded), costs, read_step_settings(source))
    model = LayerSwapModel2x.of(graph_model, caveats)
    return LoadedStep(document, Policy(), model, None, Path(document.file))


def _trace_problem(document: Document) -> Problem:
    """Return the error of a plan without a trace."""
    problem = wrong_form_problem(document)
    if problem is None:
        raise AssertionError("a file of MindFormers 1.9")
    return replace(
        problem,
        message=f"this is a configuration of {ConfigFormat.PYNATIVE.value}, "
        "which is planned from a trace of its network",
        allowed="--trace FILE, of one step of the same model",
        fix=f"mindswap trace {document.file} -o step.json, with mindformers 2.1.0, or with 1.9.0 and a file of 1.9 of "
        f"the same model; then mindswap plan {document.file} --trace step.json",
    )


def _architecture(document: Document) -> str:
    """Return the class of the model; "" if the configuration does not have it. In newer models it is a list."""
    for keys in (("model", "architectures"), ("model", "model_config", "architectures"), ("model", "arch", "type")):
        node = document.get(*keys)
        if node is not None:
            node = node.items[0] if node.items else node
            return node.value if isinstance(node.value, str) else ""
    return ""


def require_same_model(document: Document, source: Document, num_layers: int, trace: str) -> None:
    """Check that a trace can be the step of a 2.x configuration.

    Args:
        document: the 2.x configuration.
        source: the configuration of the trace.
        num_layers: layers of the trace.
        trace: path of the trace, for messages.

    Raises:
        PlanError: with the location of the first difference.
    """
    if find_num_layers_2x(document) not in (num_layers, None):
        node = document.get("model", "num_hidden_layers") or document.get("model")
        if node is None:
            raise AssertionError("a number of layers without its place in the file")
        raise PlanError(
            f"{node.location}: model has {find_num_layers_2x(document)} layers, {trace} has {num_layers}\n"
            "    fix:     a trace of a configuration with as many layers"
        )
    if find_mtp_layers(document):
        raise PlanError(f"{document.file}: layers for multi-token prediction cannot be planned")
    stages = source.count("parallel_config", "pipeline_stage")
    pipeline = document.get("parallelism", "pipeline_parallel")
    if pipeline is not None and pipeline.value not in (1, None):
        raise PlanError(
            f"{pipeline.location}: parallelism.pipeline_parallel: {show(pipeline)}: MindFormers 2.x does not swap with "
            "a pipeline, and a trace has no stages\n    allowed: 1"
        )
    if stages > 1:
        raise PlanError(f"{trace}: its configuration has {stages} pipeline stages\n    allowed: 1")
    for key, names in SIZES.items():
        node = document.get("model", key)
        sizes = [value for name in names if (value := source.get("model", "model_config", name)) is not None]
        if node is not None and sizes and node.value != sizes[0].value:
            raise PlanError(
                f"{node.location}: model.{key}: {show(node)}; in the configuration of {trace} it is {show(sizes[0])}\n"
                "    fix:     a trace of the same network"
            )


def sections_2x(policy: Policy, num_layers: int) -> dict[str, dict[str, Any]]:
    """Return a policy of full layers as sections of MindFormers 2.x, where `prefetch` counts layers."""
    swap: dict[str, Any] = {"enable": False}
    for entry in policy.layer_swap:
        layers = index_runs(entry.layers.resolve(num_layers))
        swap = {"enable": True, "default_prefetch": entry.prefetch, "layer_swap": [{"layers": layers}]}
    recomputed = policy.layer_recompute.resolve(num_layers)
    recompute: dict[str, Any] = {"mode": "None"}
    if recomputed:
        recompute = {"mode": "full", "full_recompute_layer": index_runs(recomputed)}
    return {"swap": swap, "recompute": recompute}


def planned_text_2x(step: LoadedStep, plan: Plan, target: str) -> str:
    """Return the text of a 2.x configuration with a plan, after reading it back. Comments and other keys stay.

    Raises:
        PlanError: if the written text has errors, or is parsed as another policy.
    """
    num_layers = len(step.model.captured.sample.layer_map)
    text = step.config_text()
    for name, value in sections_2x(plan.policy, num_layers).items():
        comment = plan_comment(plan, step.device.title) if name == "swap" else None
        text = rewrite_section(text, name, value, comment, step.document.file)
    checked = check_pynative(parse_document(text, target), num_layers)
    if checked.errors or not _is_read_back(plan.policy, num_layers, checked):
        raise PlanError(f"the plan cannot be written to {target}\n{format_problems(checked.errors)}")
    return text


def _is_read_back(policy: Policy, num_layers: int, checked: PynativeCheck) -> bool:
    """Return whether the settings that were read back have the effect of the policy in every layer."""
    effect = checked.effect
    swapped = union_layers(entry.layers for entry in policy.layer_swap)
    distances = {entry.prefetch for entry in policy.layer_swap if entry.layers}
    expected = [(i in swapped, i in policy.layer_recompute, (), ()) for i in range(num_layers)]
    actual = [(layer.is_swapped, layer.is_recomputed, layer.swapped, layer.recomputed) for layer in effect.layers]
    return actual == expected and distances <= {effect.settings.prefetch}


def is_2x(document: Document) -> bool:
    """Return whether a configuration is of MindFormers 2.x."""
    return find_format(document) is ConfigFormat.PYNATIVE
