"""Convert swap and recompute settings of a configuration; the rest of its text is unchanged: `mindswap convert`."""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from mindswap.config.nodes import Document, to_data
from mindswap.config.parse import parse_document
from mindswap.config.pipeline_layout import LayoutError, read_pipeline
from mindswap.config.problem import Level, Location, Problem, find_errors, sort_problems
from mindswap.config.render import COMMAND_LINE
from mindswap.config.section_edits import rewrite_section
from mindswap.config.source import BASE_CONFIG, load_document, with_model_of_folder
from mindswap.errors import DataError, LaunchError, PolicyError
from mindswap.features.convert.stage_counts import Converted, Request, load_trees, to_index_form
from mindswap.features.convert.versions import VERSIONS, Rewritten, convert_versions
from mindswap.files import read_limited
from mindswap.policy.cell_tree import LayerTrees, load_layer_trees
from mindswap.policy.equivalence import policy_sections, rewrite_for_swap
from mindswap.policy.formats.megatron.options import RULE, MegatronOptions, read_options, read_tokens
from mindswap.policy.formats.megatron.other_options import find_other_options
from mindswap.policy.formats.megatron.placement import place_layers
from mindswap.policy.formats.megatron.policy import policy_of_megatron
from mindswap.policy.formats.megatron.script import ScriptError, find_command, option_line
from mindswap.policy.formats.mindformers1.read import find_num_layers
from mindswap.policy.formats.mindformers2.tables import refuse_pynative
from mindswap.policy.model import Policy
from mindswap.rules.checker import check_document, model_section
from mindswap.steps.network import find_layer_trees

# Limit of the size of a launch script, which usually has a few KiB.
MAX_SCRIPT_BYTES = 1 << 20

# Models whose operator names are available without CONFIG.
FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {"arch": {"type": "LlamaForCausalLM"}, "model_config": {"use_flash_attention": True}},
    "qwen3": {"model_config": {"architectures": ["Qwen3ForCausalLM"]}},
    "qwen3_moe": {"model_config": {"architectures": ["Qwen3MoeForCausalLM"]}},
    # As DeepSeek-V3 with 671B parameters: the first three layers have no experts.
    "deepseek3": {"model_config": {"architectures": ["DeepseekV3ForCausalLM"], "first_k_dense_replace": 3}},
}


@dataclass(frozen=True)
class MegatronSource:
    """Options of Megatron-LM, with the settings that they lack."""

    options: Mapping[str, Sequence[str]]  # name (e.g. `--num-layers`) -> values, from the command line
    script: str | None = None  # script with more options; `-` for the standard input
    family: str = "llama"  # family of operator names without CONFIG, one of `FAMILIES`
    num_prefetch_ops: int = 1  # prefetch distance of offloaded activations, in operators


def convert_config(
    config: str | None,
    to: str | MegatronSource,
    target: str | None = None,
    num_layers: int | None = None,
    ops_per_layer: int | None = None,
    trace: str | None = None,
) -> Rewritten:
    """Convert one configuration, without writing a file.

    Args:
        config: MindFormers YAML; None returns only the sections for options of Megatron-LM.
        to: `index` (layer indices, from counts per stage), `2.x`, `1.9`, or options of Megatron-LM to convert from.
        target: output file, for messages.
        num_layers: layers of the model, if the file does not have the number.
        ops_per_layer: see `convert_versions`.
        trace: see `convert_versions`.

    Returns:
        The converted configuration.

    Raises:
        PolicyError: if the settings are wrong, or have no counterpart; lists every reason.
        LaunchError: if the arguments contradict the file.
    """
    document, text = (Document(COMMAND_LINE, None), "") if config is None else _read(config, target)
    request = Request(document, text, num_layers, target or "the result")
    if isinstance(to, str) and to in VERSIONS:
        return convert_versions(request, to, ops_per_layer, trace)
    refuse_pynative(document)
    if isinstance(to, MegatronSource):
        converted, num_layers = sections_of_megatron(to, request)
    else:
        num_layers = request.find_num_layers(find_num_layers(document))
        converted = to_index_form(document, num_layers, load_trees(document, check_document(document, num_layers)))
    if converted.sections.get("swap_config", {}).get("swap") is True and document.root is not None:
        text = rewrite_for_swap(text, parse_document(text, document.file), document)
    for name, value in converted.sections.items():
        text = rewrite_section(text, name, value, converted.comments.get(name), document.file)
    problems = converted.problems
    if document.root is not None:  # without CONFIG there is no complete configuration to check
        written = with_model_of_folder(parse_document(text, request.target))
        problems = (*problems, *check_document(written, num_layers).problems)
    return Rewritten(text, sort_problems(problems), {"sections": converted.sections})


def _read(config: str, target: str | None) -> tuple[Document, str]:
    """Return the configuration with its bases merged, and the text of the file."""
    document = load_document(config)
    if errors := find_errors(document.problems):
        raise PolicyError(errors)
    text = Path(config).read_bytes().decode("utf-8")
    file_document = parse_document(text, config)
    if file_document.get(BASE_CONFIG) is not None:
        _refuse_inherited(file_document, document)
        if target and Path(target).resolve().parent != Path(config).resolve().parent:
            raise LaunchError(f"{config} is based on other files ({BASE_CONFIG}); write the result into its folder")
    return document, text


def _refuse_inherited(file_document: Document, merged_document: Document) -> None:
    """Refuse sections that are partly in a base file: MindFormers merges both, so they cannot be replaced here."""
    for section in ("swap_config", "recompute_config", "mindswap"):
        section_of_file, merged = file_document.get(section), merged_document.get(section)
        if merged is not None and (section_of_file is None or to_data(section_of_file) != to_data(merged)):
            message = f"{section}: a part of it is in another file ({BASE_CONFIG})"
            fix = f"copy {section} into {file_document.file}"
            raise PolicyError([Problem(merged.location, "convert", Level.ERROR, message, fix=fix)])


# Megatron-LM: options and launch scripts -> sections of a configuration.


def sections_of_megatron(source: MegatronSource, request: Request) -> tuple[Converted, int]:
    """Convert options of Megatron-LM to sections for the file of the request.

    Returns:
        The sections, and the number of layers.

    Raises:
        PolicyError: if Megatron-LM would refuse the options, or the model has no counterpart.
        LaunchError: if the options contradict the file.
    """
    options, problems = _read_megatron(source)
    stated = find_num_layers(request.document)
    if stated is not None:
        num_layers = replace(request, num_layers=options.num_model_layers).find_num_layers(stated)
        options = replace(options, num_layers=num_layers + options.num_noop_layers)
    use_legacy = source.family == "llama" if request.document.root is None else request.document.is_legacy
    trees = _find_trees(source, request.document, options)
    megatron_policy = policy_of_megatron(options, use_legacy, trees, source.num_prefetch_ops)
    options_with_problems = {problem.subject for problem in problems}
    new_problems = (problem for problem in megatron_policy.problems if problem.subject not in options_with_problems)
    problems = sort_problems((*problems, *new_problems))
    if megatron_policy.policy is None or find_errors(problems):
        raise PolicyError(problems)
    num_layers = _require_num_layers(options.num_model_layers)
    merged = _with_present(megatron_policy.policy, options, num_layers, request.document, trees)
    sections = policy_sections(merged.policy, request.document.data(), num_layers)
    for name in merged.unchanged_sections:
        sections.pop(name, None)
    if options.swap_optimizer:
        sections["optimizer"] = {**(request.document.data().get("optimizer") or {}), "swap": True}
    summary = {
        "recompute_config": [line for line in megatron_policy.summary if not line.startswith("offload")],
        "swap_config": [line for line in megatron_policy.summary if line.startswith("offload")],
    }
    if options.swap_optimizer:
        summary["optimizer"] = ["swap-optimizer: swap"]
    comments = {name: "\n".join(["from Megatron-LM", *lines]) for name, lines in summary.items() if lines}
    problems = sort_problems((*problems, *merged.warnings, *_compare_pipelines(options, request.document)))
    return Converted(sections, problems, merged.policy, comments), num_layers


def _require_num_layers(num_layers: int | None) -> int:
    if num_layers is None:
        raise AssertionError("a policy for an unknown number of layers")
    return num_layers


def _read_script(script: str) -> str:
    if script != "-":
        return read_limited(script, MAX_SCRIPT_BYTES).decode("utf-8", "replace")
    text = sys.stdin.read(MAX_SCRIPT_BYTES + 1)
    if len(text) > MAX_SCRIPT_BYTES:
        raise DataError(f"standard input: is too large\n    allowed: a script of at most {MAX_SCRIPT_BYTES >> 20} MiB")
    return text


def _read_megatron(source: MegatronSource) -> tuple[MegatronOptions, tuple[Problem, ...]]:
    """Read the options of the script, overridden by those of the command line."""
    texts = source.options
    command_line_options, problems = read_options(texts, dict.fromkeys(texts, Location(COMMAND_LINE)))
    if source.script is None:
        return command_line_options, problems
    name = "standard input" if source.script == "-" else source.script
    try:
        script = _read_script(source.script)
        command = find_command(script)
    except OSError as error:
        raise LaunchError(f"{name}: cannot be read: {error.strerror}") from error
    except ScriptError as error:
        location = Location(name, error.line, 1 if error.line else 0)
        raise PolicyError([Problem(location, RULE, Level.ERROR, f"the script {error}")]) from None
    tokens = {option: values for option, values in read_tokens(command.words).items() if option not in texts}
    locations = {option: Location(name, option_line(script, option), 1) for option in tokens}
    read, script_problems = read_options(tokens, locations)
    option_problems = tuple(
        Problem(
            location=Location(name, option_line(script, unread_option.name), 1),
            rule=RULE,
            level=unread_option.level,
            message=f"{unread_option.name}: {unread_option.message}",
            fix=unread_option.fix,
            subject=unread_option.name,
        )
        for unread_option in find_other_options(command.words)
    )
    unknown = tuple(
        Problem(
            Location(name, line, 1 if line else 0),
            RULE,
            Level.WARNING,
            f"{word}: its value is not known without running the script",
            fix="give the options in it on the command line of mindswap convert",
            subject=word,
        )
        for word, line in zip(command.unknown, command.unknown_lines, strict=True)
    )
    return read.override(command_line_options), (*problems, *script_problems, *option_problems, *unknown)


def _find_trees(source: MegatronSource, document: Document, options: MegatronOptions) -> LayerTrees | None:
    """Return the layers of the model, from a table, else from the real network; needed for module names only."""
    num_layers = options.num_model_layers or 1
    if document.root is None:
        return load_layer_trees(dict(FAMILIES[source.family]), num_layers)
    return find_layer_trees(document.file, load_layer_trees(model_section(document), num_layers), num_layers)


class _MergedPolicy(NamedTuple):
    """Policy of Megatron's options, merged with settings of CONFIG."""

    policy: Policy
    unchanged_sections: tuple[str, ...] = ()  # sections of CONFIG that stay as they are
    warnings: tuple[Problem, ...] = ()


def _with_present(
    policy: Policy, options: MegatronOptions, num_layers: int, document: Document, trees: LayerTrees | None
) -> _MergedPolicy:
    """Merge the policy with settings of CONFIG that Megatron's options lack."""
    is_on = document.value("swap_config", "swap") is True
    if not options.asks_recompute and not options.asks_offload:
        return _MergedPolicy(policy, ("recompute_config", "swap_config", "mindswap"))
    kept = ("swap_config",) if is_on and not options.asks_offload else ()
    if options.asks_recompute or document.root is None:
        return _MergedPolicy(policy, kept)
    if is_on:
        return _MergedPolicy(policy, ("recompute_config", "mindswap"))
    counted = to_index_form(document, num_layers, trees)
    return _MergedPolicy(replace(counted.policy, op_swap=policy.op_swap), kept, counted.problems)


def _compare_pipelines(options: MegatronOptions, document: Document) -> tuple[Problem, ...]:
    """Warn if CONFIG has other stages than Megatron's options, because counts are per stage."""
    if document.root is None or options.num_layers is None or not options.counts_layers:
        return ()
    placement = place_layers(options, options.num_layers)
    sizes = placement.model_sizes
    try:
        layout = read_pipeline(document).layout(placement.num_model_layers)
    except LayoutError:
        return ()
    if layout.sizes == sizes and layout.is_zero_bubble_v == placement.layout.is_zero_bubble_v:
        return ()
    location = document.location_of("parallel_config", "pipeline_stage")
    message = "parallel_config.pipeline_stage: the stages are not those of Megatron's options, whose layers are written"
    options_as_config = "--pipeline-model-parallel-size and --num-virtual-stages-per-pipeline-rank as in CONFIG"
    fix = f"{placement.describe()}; or {options_as_config}"
    return (Problem(location, "convert", Level.WARNING, message, fix=fix),)
