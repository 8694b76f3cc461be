"""Explain recompute and swap of each layer, stage and chunk of a configuration: `mindswap explain`."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from mindswap.config.nodes import Document
from mindswap.config.problem import Problem
from mindswap.config.source import as_document
from mindswap.errors import GraphError, PolicyError
from mindswap.features.explain.report import (
    explain_layers,
    explanation_to_json,
    format_explanation,
    list_paths,
    list_paths_2x,
)
from mindswap.policy.cell_tree import LayerTrees
from mindswap.policy.formats.mindformers1.stage_recompute import expand_stage_recompute
from mindswap.policy.formats.mindformers2.tables import ConfigFormat, find_format
from mindswap.report.pynative import format_settings_effect, settings_effect_to_json
from mindswap.rules.checker import CheckResult, check_document, check_pynative, require_num_layers
from mindswap.rules.machine.software import installed_version
from mindswap.simulator.stage_weights import format_trained
from mindswap.steps.network import count_trained_weights, find_layer_trees, has_mindformers


@dataclass(frozen=True)
class ExplainedConfig:
    """Explanation of a configuration."""

    text: str
    data: Mapping[str, Any]  # data for `--json`
    problems: tuple[Problem, ...]  # problems of the configuration
    has_errors: bool = False  # only for MindFormers 2.x; a file of 1.9 with errors is not explained


def explain_config(config: str | os.PathLike[str] | Document, num_layers: int | None = None) -> ExplainedConfig:
    """Explain recompute and swap of each layer, stage and chunk.

    Args:
        config: path of a configuration of either format, or a parsed document.
        num_layers: layers of the model; None takes the number in the configuration.

    Raises:
        PolicyError: if a configuration of 1.9 has errors, or one of 2.x cannot be parsed.
        GraphError: if the number of layers is needed but not known.
    """
    document = as_document(config)
    if find_format(document) is ConfigFormat.PYNATIVE:
        checked_2x = check_pynative(document, num_layers, mindformers=installed_version("mindformers"))
        if document.root is None:
            raise PolicyError(checked_2x.problems)
        has_errors, problems = bool(checked_2x.errors), checked_2x.problems
        text = format_settings_effect(checked_2x.effect, has_errors)
        return ExplainedConfig(text, settings_effect_to_json(checked_2x.effect, problems), problems, has_errors)
    checked = check_document(document, num_layers)
    policy, stages = checked.require_policy(), None
    if not checked.is_swap_enabled:
        num_layers = require_num_layers(document, checked.num_layers)
        stages = expand_stage_recompute(document, num_layers)
        policy = stages.policy
    explanation = explain_layers(policy, checked.num_layers, checked.trees, stages)
    explanation = replace(explanation, notes=_training_notes(document))
    return ExplainedConfig(format_explanation(explanation), explanation_to_json(explanation), checked.problems)


def _training_notes(document: Document) -> tuple[str, ...]:
    """Return notes on the trained weights if MindFormers freezes some; empty without MindFormers."""
    if document.get("model", "model_config", "pet_config") is None or not has_mindformers():
        return ()
    return (format_trained(*count_trained_weights(document.file)),)


def list_names(config: str | os.PathLike[str] | Document, num_layers: int | None = None) -> list[dict[str, Any]]:
    """List the cells and operators of a layer, which are the names for `op_swap` and `select_recompute`.

    Args:
        config: see `explain_config`.
        num_layers: see `explain_config`.

    Returns:
        JSON data, one entry per name.

    Raises:
        GraphError: if the names of the model are not known.
    """
    document = as_document(config)
    if find_format(document) is not ConfigFormat.PYNATIVE:
        return list_paths(_find_trees(document, check_document(document, num_layers)))
    checked = check_pynative(document, num_layers)
    if document.root is None:
        raise PolicyError(checked.problems)
    if checked.effect.model is None:
        raise GraphError("no table has this model in PyNative mode, so the names of its cells are not known")
    return list_paths_2x(checked.effect.model)


def _find_trees(document: Document, checked: CheckResult) -> LayerTrees:
    """Return the layers from a table of the model family, else from the real network."""
    trees = find_layer_trees(document.file, checked.trees, checked.num_layers)
    if trees is not None:
        return trees
    if not has_mindformers():
        raise GraphError("no table has this model; run this where MindFormers is installed")
    require_num_layers(document, checked.num_layers)
    raise GraphError(f"{document.file}: the layers of this model are not known")
