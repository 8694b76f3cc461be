"""MindFormers: its networks, built from a YAML file without weights, without device, without workers."""

import logging
from dataclasses import dataclass

import mindspore as ms
from mindformers.core.context import build_context
from mindformers.core.parallel_config import build_parallel_config
from mindformers.models.build_model import build_network as build_model_network
from mindformers.tools.register import MindFormerConfig
from mindformers.wrapper.wrapper import DataOrderWrapperCell
from mindspore import nn
from mindspore.common.initializer import Zero
from mindspore.nn.utils import no_init_parameters

from mindswap.adapters.config import install_stand_ins, keep_swap_sections, replace_swap_sections
from mindswap.adapters.mindspore import (
    compile_training_graph,
    enable_lazy_inline,
    find_layers,
    find_lazy_inline_cell,
)
from mindswap.applier.actions import LayerActions
from mindswap.applier.apply import apply_policy, iterate_primitives, read_tree
from mindswap.errors import GraphError
from mindswap.graph.model import Graph
from mindswap.graph.uses import graph_uses
from mindswap.policy.cell_tree import CellNode, LayerTrees
from mindswap.policy.model import Policy

__all__ = ["Capture", "build_network", "capture", "read_layer_trees", "read_operator_uses", "set_policy"]


def set_policy(network: nn.Cell, policy: Policy, logger: logging.Logger | None = None) -> tuple[LayerActions, ...]:
    """Set a policy on a network of MindFormers: its layers, and its MTP layers as the last layer.

    MindFormers gives the layers of multi-token prediction the index of the last transformer layer.
    """
    layers = list(find_layers(network))
    mtp = getattr(getattr(network, "model", None), "mtp", None)
    mtp_layers = [layer.transformer_layer for layer in getattr(mtp, "layers", ())]
    indices = [*range(len(layers)), *[len(layers) - 1] * len(mtp_layers)]
    return apply_policy(layers + mtp_layers, policy, logger, indices)


def read_layer_trees(config_path: str, num_layers: int) -> LayerTrees:
    """The cells and primitives of every layer of the network that a YAML file describes.

    Raises:
        GraphError: if MindFormers cannot build the network.
    """
    network, _ = build_network(config_path, Policy(is_swap_enabled=True))  # without MindFormers' own recompute
    trees = tuple(read_tree(layer) for layer in find_layers(network))
    if len(trees) != num_layers:
        raise GraphError(f"the network has {len(trees)} layers, the configuration says {num_layers}")
    return LayerTrees(trees, uses={}, source="the real network")


def read_operator_uses(config_path: str, layer_index: int) -> tuple[CellNode, dict[str, list[str]]]:
    """Tree of one layer, and which of its primitives read the output of which.

    Every primitive carries its path into the compile as an attribute. That keeps the compiler from
    merging equal operators, so this graph tells who uses what and is not a measure of memory.

    Returns:
        The tree, and primitive path -> sorted paths of the primitives that use its output.
    """
    network, config = build_network(config_path, Policy())
    layer = find_layers(network)[layer_index]
    tree = read_tree(layer)
    for path, primitive in iterate_primitives(layer, tree):
        primitive.add_prim_attr("mindswap_path", ".".join(path))
    enable_lazy_inline(find_lazy_inline_cell(network))
    return tree, graph_uses(_compile(network, config), "mindswap_path")


# Where `_build` leaves its notes in the configuration.
NOTES_KEY = "mindswap_notes"


@dataclass(frozen=True)
class Capture:
    """A network under a policy, compiled.

    Attributes:
        layers: tree of each layer.
        graph: forward and backward as the compiler leaves them.
        notes: where the compiled network differs from the one that trains, in words.
    """

    layers: tuple[CellNode, ...]
    graph: Graph
    notes: tuple[str, ...]


def capture(config_path: str, policy: Policy, with_lazy_inline: bool = True) -> Capture:
    """Compile the network of a YAML file under a policy.

    Args:
        config_path: MindFormers YAML.
        policy: what to set; a policy with swap disabled leaves recompute to MindFormers.
        with_lazy_inline: as mindswap runs it on Ascend; False shows what happens without.

    Raises:
        GraphError: if the network cannot be built or compiled.
        ApplyError: if the policy does not fit the network.
    """
    network, config = build_network(config_path, policy)
    set_policy(network, policy)
    if with_lazy_inline:
        enable_lazy_inline(find_lazy_inline_cell(network))
    trees = tuple(read_tree(layer) for layer in find_layers(network))
    return Capture(trees, _compile(network, config), tuple(config.get(NOTES_KEY, ())))


def build_network(config_path: str, policy: Policy):
    """The training network of a YAML file without weights, and the configuration as MindFormers completed it.

    Args:
        config_path: MindFormers YAML.
        policy: when it has swap enabled, MindFormers' own swap and recompute stay off.

    Raises:
        GraphError: if MindFormers refuses the configuration; the text is its own.
    """
    try:
        return _build(config_path, policy)
    except (KeyError, ValueError, TypeError, AttributeError, RuntimeError, OSError, ImportError) as error:
        raise GraphError(f"MindFormers could not build the network of {config_path}: {error}") from error


def _build(config_path, policy):
    keep_swap_sections()
    config = MindFormerConfig(config_path, run_mode="train")
    replace_swap_sections(config, policy)
    install_stand_ins(config)
    _avoid_cpu_limits(config)
    # One process without workers: the newer models start communication in any other mode.
    config.use_parallel = False
    config.context.device_target = "CPU"
    config.context.pop("ascend_config", None)
    config.context.pop("max_device_memory", None)
    build_context(config)
    build_parallel_config(config)
    with no_init_parameters():
        network = build_model_network(
            config.model,
            default_args={
                "parallel_config": config.parallel_config,
                "moe_config": config.moe_config,
                "dataset_config": config.train_dataset,
            },
        )
    return network, config


def _avoid_cpu_limits(config) -> None:
    """The frontend infers shapes for the CPU, whose BatchMatMul does not broadcast."""
    model = config.model.model_config
    if config.get("use_legacy", True) and not model.get("use_rope_slice"):
        model.use_rope_slice = True
        config[NOTES_KEY] = ["compiled with use_rope_slice: True, because BatchMatMul does not broadcast on CPU"]


def _compile(network, config) -> Graph:
    inputs = _example_inputs(config)
    return compile_training_graph(DataOrderWrapperCell(list(inputs), network), tuple(inputs.values()))


def _example_inputs(config) -> dict[str, ms.Tensor]:
    """The columns of the data set as the network takes them, without values."""
    batch = config.runner_config.batch_size or 1
    seq_length = config.model.model_config.seq_length
    is_legacy = config.get("use_legacy", True)
    if is_legacy and not config.model.model_config.get("input_sliced_sig"):
        return {"input_ids": _empty((batch, seq_length + 1), ms.int32)}
    data = config.train_dataset or {}
    columns = data.get("construct_args_key") or data.get("input_columns") or ["input_ids", "labels"]
    columns = list(dict.fromkeys([*columns, "labels"]))
    shapes = {
        "attention_mask": ((batch, 1, seq_length, seq_length), ms.uint8),
        "loss_mask": ((batch, seq_length), ms.float32),
    }
    return {name: _empty(*shapes.get(name, ((batch, seq_length), ms.int32))) for name in columns}


def _empty(shape, dtype):
    return ms.Tensor(shape=shape, dtype=dtype, init=Zero())
