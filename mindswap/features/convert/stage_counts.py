"""Convert recompute settings from counts per pipeline stage (swap off) to layer indices (swap on).

The result is parsed and compared: in every layer the same operators must be recomputed.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from mindswap.config.nodes import Document
from mindswap.config.problem import Level, Location, Problem, sort_problems
from mindswap.config.render import document_from_data
from mindswap.errors import LaunchError, PolicyError
from mindswap.policy.applied import EXCLUDE, as_applied, find_excluded_cells
from mindswap.policy.cell_tree import LayerTrees
from mindswap.policy.equivalence import first_recompute_difference, policy_sections
from mindswap.policy.formats.mindformers1.read_parts import is_empty
from mindswap.policy.formats.mindformers1.schema import RECOMPUTE_FLAGS, SELECT_OPTIONS
from mindswap.policy.formats.mindformers1.settings import Statement
from mindswap.policy.formats.mindformers1.stage_recompute import RULE as STAGE_RULE
from mindswap.policy.formats.mindformers1.stage_recompute import expand_stage_recompute, recomputes_scores
from mindswap.policy.model import Layers, OpRecompute, Policy
from mindswap.rules.checker import CheckResult, check_document, check_shape, missing_num_layers
from mindswap.steps.network import find_layer_trees

# Input and output of all kinds of conversion.


@dataclass(frozen=True)
class Request:
    """Configuration to convert."""

    document: Document  # the configuration with its bases merged; has no root if CONFIG is not given
    text: str = ""  # text of the file
    num_layers: int | None = None  # layers of the model, from the command line
    target: str = "the result"  # name of the output in messages

    def find_num_layers(self, stated: int | None) -> int:
        """Return the number of layers: that of the request, or `stated` in the file.

        Raises:
            LaunchError: if both are missing, or they differ.
        """
        if stated is not None and self.num_layers not in (None, stated):
            raise LaunchError(f"--num-layers {self.num_layers}: {self.document.file} has {stated} layers")
        if (num_layers := self.num_layers or stated) is None:
            if self.document.root is None:
                raise LaunchError("the number of layers is not known\n    fix:     --num-layers N")
            raise LaunchError(f"the number of layers is not known\n{missing_num_layers(self.document)}")
        return num_layers


@dataclass(frozen=True)
class Converted:
    """Sections of MindFormers 1.9 with swap on."""

    sections: dict[str, dict[str, Any]]  # changed sections with their new values
    problems: tuple[Problem, ...]  # warnings, for example of dropped settings that had no effect
    policy: Policy  # policy of the sections, in layer indices
    comments: Mapping[str, str]  # section -> comment to put above it


RULE = "convert"
# Options that select operators.
SELECTED = ("select_recompute", "select_comm_recompute")
ONLY_OPERATORS = "MindFormers excludes operators only"
COMMENTS = {"recompute_config": "layer indices, from counts per pipeline stage (mindswap convert --to index)"}


def to_index_form(document: Document, num_layers: int, trees: LayerTrees | None) -> Converted:
    """Convert counts per stage (swap off) to layer indices (swap on), with nothing swapped.

    Args:
        document: the configuration, with swap off.
        num_layers: layers of the model.
        trees: cells of each layer; None if unknown, then `exclude` entries cannot be converted.

    Returns:
        The converted sections with warnings.

    Raises:
        PolicyError: if the settings are wrong or cannot be expressed in layer indices; lists every reason.
    """
    swap = document.get("swap_config", "swap")
    if swap is not None and swap.value is not False:
        message = "swap_config.swap: swap is on, so recompute_config is in layer indices already"
        raise PolicyError((_error(swap.location, message),))
    expansion = expand_stage_recompute(document, num_layers)
    errors = [p for p in check_document(document, num_layers, trees).errors if p.rule == STAGE_RULE]
    if errors:
        raise PolicyError(sort_problems((*expansion.problems, *errors)))
    unknown = list(_unknown_excludes(expansion.statements, trees))
    if unknown:
        raise PolicyError(sort_problems(unknown))
    dropped = dict(_ineffective_flags(document))
    flags: dict[str, Any] = {name: RECOMPUTE_FLAGS[name] for name in dropped}
    policy = replace(as_applied(expansion.policy, trees), **flags)
    shorter = _without_recomputed_layers(policy, num_layers)
    policy = policy if first_recompute_difference(policy, shorter, num_layers, trees) else shorter
    problems = list(dropped.values())
    for named in find_excluded_cells(expansion.statements, trees) if trees is not None else ():
        consequence = "only the operators it names beside are written" if named.has_operators else "so it is left out"
        message = f"{named.statement.path}: had no effect on '{named.cell}', a cell: {ONLY_OPERATORS}; {consequence}"
        problems.append(_warning(named.location, message, "write it again, to exclude all of the cell"))
    problems += [p for p in expansion.problems if p.location not in {q.location for q in problems}]
    section = document.get("swap_config")
    for entry in section.unique_entries() if section is not None else ():
        if entry.key in ("layer_swap", "op_swap") and (entry.value.items or entry.value.entries):
            message = f"swap_config.{entry.key}: had no effect with swap off, so it is left out"
            problems.append(_warning(entry.location, message, "write it again to swap"))
    problems += _attention_problem(document, policy)
    sections = policy_sections(policy, document.data(), num_layers)
    if not (policy.layer_recompute or any(getattr(policy, option) for option in SELECT_OPTIONS)):
        sections["swap_config"] = {"swap": False}  # nothing is recomputed; this form avoids warnings
        return Converted(sections, sort_problems(problems), policy, COMMENTS)
    read_back = check_shape(document_from_data({**document.data(), **sections}, document.file), num_layers)
    if read_back.policy is None:
        raise PolicyError(read_back.problems)
    difference = first_recompute_difference(policy, read_back.policy, num_layers, trees)
    if difference:
        location = document.location_of("recompute_config")
        raise PolicyError(
            (_error(location, f"recompute_config: the index form would not mean the same: {difference}"),)
        )
    return Converted(sections, sort_problems(problems), policy, COMMENTS)


def load_trees(document: Document, checked: CheckResult) -> LayerTrees | None:
    """Return the layers from a table; if operators are excluded and there is no table, from the real network."""
    if is_empty(document.get("recompute_config", EXCLUDE)):
        return checked.trees
    return find_layer_trees(document.file, checked.trees, checked.num_layers)


def _without_recomputed_layers(policy: Policy, num_layers: int) -> Policy:
    """Return the policy without selected operators in fully recomputed layers, where they have no effect."""
    changes: dict[str, Any] = {}
    recomputed_layers = set(policy.layer_recompute.resolve(num_layers))
    for option in SELECTED:
        remaining = (
            (entry.pattern, set(entry.layers.resolve(num_layers)) - recomputed_layers)
            for entry in getattr(policy, option)
        )
        changes[option] = tuple(OpRecompute(pattern, Layers(layers)) for pattern, layers in remaining if layers)
    return replace(policy, **changes)


def _unknown_excludes(statements: tuple[Statement, ...], trees: LayerTrees | None) -> Iterator[Problem]:
    """Report excludes if the model is unknown: with swap off they depend on whether a name is a cell."""
    for statement in statements if trees is None else ():
        if statement.option == EXCLUDE and statement.layers:
            message = (
                f"{statement.path}: cannot be converted, because no table has this model: with swap off "
                f"{ONLY_OPERATORS}, and whether '{statement.pattern}' is one is not known"
            )
            fix = "run this where MindFormers is installed, or delete it first"
            yield _error(statement.pattern_location, message, fix)


def _ineffective_flags(document: Document) -> Iterator[tuple[str, Problem]]:
    """Report flags that MindFormers ignores with swap off but would apply with swap on."""
    for name, default in RECOMPUTE_FLAGS.items():
        node = document.get("recompute_config", name)
        takes_effect = name == "recompute_slice_activation" and document.value("recompute_config", "recompute") is True
        if node is not None and node.value != default and not takes_effect:
            message = f"recompute_config.{name}: had no effect with swap off, so {default} is written"
            yield name, _warning(node.location, message, f"{name}: {node.value}, to have it")


def _attention_problem(document: Document, policy: Policy) -> list[Problem]:
    """Warn of operators that the legacy Llama recomputes in addition to the selected ones."""
    node = document.get("recompute_config", "select_recompute")
    if not recomputes_scores(document) or node is None or not policy.select_recompute:
        return []
    message = (
        "recompute_config.select_recompute: with swap off and without flash attention MindFormers also recomputes the "
        "scores of attention in every layer; the index form has only what is written"
    )
    names = "apply_rotary_emb|tile_kv|batch_matmul_q_k|mul|add|cast_attn|softmax|batch_matmul"
    fix = rf"to have it: 'attention\.(?:{names})': True"
    return [_warning(node.location, message, fix)]


def _error(location: Location, message: str, fix: str = "") -> Problem:
    return Problem(location, RULE, Level.ERROR, message, fix=fix)


def _warning(location: Location, message: str, fix: str) -> Problem:
    return Problem(location, RULE, Level.WARNING, message, fix=fix)
