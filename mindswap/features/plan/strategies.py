"""Read the batch and parallel strategy of a configuration, and write others into its text."""

from collections.abc import Hashable, Mapping
from typing import Any

from mindswap.config.nodes import Document, is_int
from mindswap.config.parse import parse_document
from mindswap.config.pipeline_layout import Layout
from mindswap.config.section_edits import rewrite_section
from mindswap.config.step_settings import StepSettings, read_step_settings
from mindswap.config.weight_sharding import is_split
from mindswap.errors import PlanError
from mindswap.planner.strategies import Batch, Strategy, StrategyLimits
from mindswap.policy.formats.mindformers1.read import find_num_layers

# Sizes that tensor parallelism must divide, by their keys in different models. Without a key of their own, key and
# value heads are as many as the attention heads.
SHARDED_SIZE_KEYS = ("num_heads", "num_attention_heads", "n_kv_heads", "num_key_value_heads", "vocab_size")
COUNTED_KEYS = ("recompute", "select_recompute", "select_comm_recompute")  # of recompute_config
EXPERT_KEYS = ("n_routed_experts", "num_experts", "num_routed_experts")


def file_strategy(document: Document) -> Strategy:
    """Read the parallel strategy of a configuration."""
    settings = read_step_settings(document)
    has_sequence = document.value("parallel_config", "use_seq_parallel") is True and settings.model_parallel > 1
    return Strategy(
        data=settings.data_parallel,
        tensor=settings.model_parallel,
        stages=settings.pipeline.num_stages,
        experts=settings.expert_parallel,
        has_sequence=has_sequence,
    )


def file_batch(document: Document) -> Batch:
    """Read the batch size and the number of micro-batches of a configuration."""
    return Batch(document.count("runner_config", "batch_size"), document.count(*_count_path(document)))


def _count_path(document: Document) -> tuple[str, str]:
    if read_step_settings(document).pipeline.num_stages > 1:
        return "parallel_config", "micro_batch_num"
    return "runner_config", "gradient_accumulation_steps"


def with_batch(text: str, document: Document, batch: Batch) -> str:
    """Return the text of a configuration with another batch; all other text is unchanged.

    Raises:
        PolicyError: the text cannot be edited in place.
    """
    document = parse_document(text, document.file)
    values = {("runner_config", "batch_size"): batch.size, _count_path(document): batch.count}
    return _with_values(text, document, {path: n for path, n in values.items() if document.count(*path) != n})


def _with_values(text: str, document: Document, changes: Mapping[tuple[str, ...], Any]) -> str:
    """Return the text of a configuration with new values at key paths; all other text is unchanged."""
    data: Any = document.data()
    for (*parents, last), value in changes.items():
        node = data
        for name in parents:
            node[name] = node = dict(node.get(name) or {})
        node[last] = value
    for section in dict.fromkeys(path[0] for path in changes):
        text = rewrite_section(text, section, data[section], None, document.file)
    return text


def capture_key(settings: StepSettings, has_sequence: bool) -> Hashable:
    """Return a key that is equal for steps with the same captured network.

    The capture does not depend on the pipeline. If ranks shard the network, MindSpore compiles one network with the
    samples of all data parallel ranks, and constants that it merges depend on their number.
    """
    num_data_parallel = settings.data_parallel if settings.is_network_sharded else None
    return *shape_key(settings, has_sequence), num_data_parallel


def shape_key(settings: StepSettings, has_sequence: bool) -> tuple[Hashable, ...]:
    """Return a key that is equal for networks with the same shapes; merged constants may differ."""
    sharding = (settings.model_parallel, settings.context_parallel, settings.expert_parallel)
    return settings.batch_size, sharding, settings.is_network_sharded and has_sequence


def strategy_space(
    document: Document,
    batch: Batch,
    sizes: tuple[int, ...] | None,
    counts: tuple[int, ...] | None,
    cards_per_node: int,
) -> StrategyLimits:
    """Collect the limits of the strategies that a configuration can use.

    Args:
        document: the configuration.
        batch: its batch; the global batch size stays.
        sizes: samples of a micro-batch; None for all divisors.
        counts: micro-batches of a step; None for all divisors.
        cards_per_node: limit of tensor parallelism.

    Raises:
        PlanError: the configuration trains without strategies, or has no number of layers.
    """
    if not is_split(document):
        raise PlanError(
            f"--strategy: {document.file}: parallel.parallel_mode takes no strategies\n"
            "    allowed: 1 (semi-auto parallel)\n    fix:     use_parallel: True, parallel: {parallel_mode: 1}"
        )
    num_layers = find_num_layers(document)
    if num_layers is None:
        raise PlanError(
            f"--strategy: {document.file}: num_layers is missing\n    fix:     model.model_config.num_layers"
        )
    settings, strategy = read_step_settings(document), file_strategy(document)
    num_expert_ranks = strategy.experts if strategy.experts > 1 else 0
    sharded_sizes = [document.value("model", "model_config", key) for key in SHARDED_SIZE_KEYS]
    experts = [document.value("model", "model_config", key) for key in EXPERT_KEYS]
    experts.append(document.value("moe_config", "expert_num"))
    return StrategyLimits(
        own=strategy,
        context=settings.context_parallel,
        num_samples=batch.num_samples * strategy.data,
        sizes=sizes,
        counts=counts,
        num_layers=num_layers,
        num_chunks=settings.pipeline.num_chunks,
        divisible=tuple(number for number in sharded_sizes if is_int(number) and number > 0),
        # Expert parallelism must divide the number of experts. If only the class of the model has it, the file's
        # expert parallelism stands for it.
        num_experts=next((number for number in experts if is_int(number) and number > 1), num_expert_ranks),
        max_tensor=cards_per_node,
    )


def with_strategy(text: str, document: Document, strategy: Strategy) -> str:
    """Return the text of a configuration with another strategy; all other text is unchanged.

    With another number of stages, the layers are distributed evenly.

    Raises:
        PolicyError: the text cannot be edited in place.
    """
    before = file_strategy(document)
    if strategy == before:
        return text
    data = document.data()
    values = {
        ("parallel_config", "data_parallel"): strategy.data,
        ("parallel_config", "model_parallel"): strategy.tensor,
        ("parallel_config", "pipeline_stage"): strategy.stages,
        ("parallel_config", "expert_parallel"): strategy.experts,
    }
    changes: dict[tuple[str, ...], Any] = {path: n for path, n in values.items() if document.count(*path) != n}
    if strategy.has_sequence != before.has_sequence:
        changes["parallel_config", "use_seq_parallel"] = strategy.has_sequence
    rows = (data.get("parallel") or {}).get("dataset_strategy")
    if strategy.data != before.data and isinstance(rows, list):  # one row per input: the shards of each dimension
        changes["parallel", "dataset_strategy"] = [_with_data_parallel(row, before.data, strategy.data) for row in rows]
    if strategy.stages != before.stages:
        if strategy.stages > 1 and document.count("runner_config", "gradient_accumulation_steps") > 1:
            changes["runner_config", "gradient_accumulation_steps"] = 1
        num_chunks = read_step_settings(document).pipeline.num_chunks
        offset = balanced_offset(find_num_layers(document) or 0, strategy.stages, num_chunks)
        if ((data.get("model") or {}).get("model_config") or {}).get("offset", 0) != offset:
            changes["model", "model_config", "offset"] = offset
        changes |= _without_counts(data)
    return _with_values(text, document, changes)


def balanced_offset(num_layers: int, num_stages: int, num_chunks: int) -> int | list[int] | list[list[int]]:
    """Return the `offset` of an even distribution of layers.

    Remaining layers go to the cells before the last one: late stages hold fewer micro-batches in flight, and the last
    one also has the head.
    """
    cells = num_stages * num_chunks
    remainder = num_layers % cells
    if remainder == 0:
        return 0
    flat = [0] * (cells - 1 - remainder) + [1] * remainder + [0]
    rows = [flat[begin : begin + num_stages] for begin in range(0, cells, num_stages)]
    return rows if num_chunks > 1 else rows[0]


def with_layout(text: str, document: Document, layout: Layout) -> str:
    """Return the text of a configuration with another assignment of layers to stages; all other text is unchanged.

    Raises:
        PolicyError: the text cannot be edited in place.
    """
    document = parse_document(text, document.file)
    offset = read_step_settings(document).pipeline.offset_of(layout)
    changes = {("model", "model_config", "offset"): offset, **_without_counts(document.data())}
    return _with_values(text, document, changes)


def _without_counts(data: Mapping[Any, Any]) -> dict[tuple[str, ...], Any]:
    """Return changes that remove recompute counts per stage, which may not match other stages; a plan replaces them."""
    section = data.get("recompute_config")
    counts = section if isinstance(section, dict) else {}
    return {("recompute_config", key): False for key in COUNTED_KEYS if counts.get(key)}


def _with_data_parallel(row: object, before: int, after: int) -> object:
    return [after, *row[1:]] if isinstance(row, list) and row[:1] == [before] else row
