"""Effect of a configuration in each layer, as text and as JSON; equal layers print once."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mindswap.config.pipeline_layout import Cell
from mindswap.policy.applied import as_applied
from mindswap.policy.cell_tree import LayerTrees
from mindswap.policy.coverage import Coverage
from mindswap.policy.formats.mindformers1.stage_recompute import StageRecompute
from mindswap.policy.formats.mindformers2.tables import Form, Model
from mindswap.policy.model import Policy
from mindswap.policy.wording import index_runs, name_indices
from mindswap.report.policy_text import LayerGroup, MemoryAction, format_actions, group_layers
from mindswap.report.problems import escape
from mindswap.report.tables import format_table


@dataclass(frozen=True)
class Explanation:
    """Explanation of each layer."""

    policy: Policy  # of the configuration; with swap off what MindFormers does by itself
    groups: tuple[LayerGroup, ...]  # equal layers together, in order of their first
    num_layers: int | None  # layers of the model; None if not known
    source: str | None  # where the operators come from; None leaves names as the configuration has them
    stages: StageRecompute | None = None  # with swap off, what MindFormers logs and the layers of each stage and chunk

    def cells(self) -> tuple[Cell, ...]:
        """Layers of each stage and chunk; none with swap on, where stages play no role."""
        layout = self.stages.layout if self.stages is not None else None
        return tuple(layout.cells()) if layout is not None else ()


def explain_layers(
    policy: Policy, num_layers: int | None, trees: LayerTrees | None, stages: StageRecompute | None = None
) -> Explanation:
    """Explanation of a policy, layer by layer; `stages`: with swap off, what the policy is from."""
    acting = policy if policy.is_swap_enabled else as_applied(policy, trees)
    groups = group_layers(acting, num_layers, trees, with_reasons=True)
    return Explanation(policy, groups, num_layers, trees.source if trees is not None else None, stages)


def format_explanation(explanation: Explanation) -> str:
    """The explanation as text."""
    count = "an unknown number of" if explanation.num_layers is None else str(explanation.num_layers)
    source = f"; operators of {explanation.source}" if explanation.source else ""
    if explanation.stages is None:
        blocks = [f"{Form.GRAPH.value}; swap is on, {count} layers{source}"]
    else:
        blocks = [f"{Form.GRAPH.value}; swap is off: this is what MindFormers does by itself, {count} layers{source}"]
        blocks.append("\n".join(map(escape, explanation.stages.formative_lines)))
        if len(explanation.cells()) > 1:
            blocks.append(_format_cells(explanation))
    blocks.append("\n".join(line for group in explanation.groups for line in _format_group(group, explanation)))
    return "\n\n".join(blocks)


def _format_group(group: LayerGroup, explanation: Explanation) -> Iterator[str]:
    indices = group.layers.indices
    if indices is None:
        yield "[every other layer]" if len(explanation.groups) > 1 else "[every layer]"
    else:
        repeat = f" (x{len(indices)})" if len(indices) > 1 else ""
        cells = explanation.cells()
        stages = sorted({cell.stage for cell in cells if set(cell.layers) & set(indices)})
        place = f" on {name_indices('stage', stages)}" if len({cell.stage for cell in cells}) > 1 else ""
        yield f"[{name_indices('layer', indices)}]{repeat}{place}"
    yield from (f"    {line}" for line in format_actions(group.steps))


def _format_cells(explanation: Explanation) -> str:
    """Layers of each stage and chunk, with those that are recomputed."""
    again = explanation.policy.layer_recompute
    selected = {
        index
        for group in explanation.groups
        if any(step.action is not MemoryAction.KEEP for step in group.steps)
        for index in group.layers.indices or ()
    }
    rows = []
    for cell in sorted(explanation.cells(), key=lambda cell: (cell.stage, cell.chunk)):
        whole = [index for index in cell.layers if index in again]
        in_part = [index for index in cell.layers if index in selected and index not in again]
        cells = (", ".join(index_runs(indices)) or "-" for indices in (cell.layers, whole, in_part))
        rows.append((str(cell.stage), str(cell.chunk), *cells))
    return format_table(("stage", "chunk", "layers", "recomputed whole", "in part"), rows)


def explanation_to_json(explanation: Explanation) -> dict[str, Any]:
    """The same as plain data."""
    cells, stages = explanation.cells(), explanation.stages
    return {
        "form": "1.9",
        "is_swap_enabled": stages is None,
        "num_layers": explanation.num_layers,
        "operators_from": explanation.source,
        "formative_lines": list(stages.formative_lines) if stages is not None else [],
        "stages": [{"stage": cell.stage, "chunk": cell.chunk, "layers": list(cell.layers)} for cell in cells],
        "layers": [group.to_data() for group in explanation.groups],
    }


def list_paths(trees: LayerTrees) -> list[dict[str, Any]]:
    """Every name that op_swap and select_recompute can have, with what it is: plain data."""
    found: dict[str, dict[str, Any]] = {}
    for tree in Coverage(trees).layer_classes:
        for path, node in tree.walk():
            name = r"\.".join(path)
            kind = f"{'operator' if node.is_primitive else 'cell'} {node.type_name}"
            found.setdefault(name, {"name": name, "is": kind, "is_operator": node.is_primitive})
    return list(found.values())


def list_paths_2x(model: Model) -> list[dict[str, Any]]:
    """The same of a model in PyNative mode."""
    layer = model.layers[0]
    return [
        {"name": path.replace(".", "\\."), "is": "cell" if path in layer.cells else "operator"} for path in layer.order
    ]


def format_paths(paths: Sequence[Mapping[str, Any]]) -> str:
    """Such names in a column, what they are beside them."""
    width = max(len(path["name"]) for path in paths)
    return "\n".join(f"{path['name']:<{width}}  {path['is']}" for path in paths)
