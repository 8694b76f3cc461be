"""Report of the effect of a configuration in each layer, as text and JSON; equal layers are grouped."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mindswap.config.pipeline_layout import Cell
from mindswap.policy.applied import as_applied
from mindswap.policy.cell_tree import LayerTrees
from mindswap.policy.coverage import Coverage
from mindswap.policy.formats.mindformers1.stage_recompute import StageRecompute
from mindswap.policy.formats.mindformers2.tables import ConfigFormat, Model
from mindswap.policy.model import Policy
from mindswap.policy.summary import LayerGroup, MemoryAction, PolicySummary, summarize_policy
from mindswap.policy.wording import index_runs, name_indices
from mindswap.report.policy_text import format_actions
from mindswap.report.problems import escape
from mindswap.report.tables import format_table


@dataclass(frozen=True)
class Explanation:
    """The effect of a policy on each layer, stage and chunk. Text and JSON are made from it.

    Attributes:
        policy: policy of the configuration; with swap off, the recompute that MindFormers does by itself.
        summary: the actions in every layer.
        stages: with swap off, the log lines of MindFormers and the layers of each stage and chunk.
        notes: other properties that affect memory, in words.
    """

    policy: Policy
    summary: PolicySummary
    stages: StageRecompute | None = None
    notes: Sequence[str] = ()

    def cells(self) -> tuple[Cell, ...]:
        """Return the layers of each stage and chunk; empty with swap on, when stages do not matter."""
        layout = self.stages.layout if self.stages is not None else None
        return tuple(layout.cells()) if layout is not None else ()


def explain_layers(
    policy: Policy, num_layers: int | None, trees: LayerTrees | None, stages: StageRecompute | None = None
) -> Explanation:
    """Resolve a policy layer by layer.

    Args:
        policy: the policy to explain.
        num_layers: layers of the model; None if not known.
        trees: the layers of the model; None if not known.
        stages: with swap off, the expansion of the recompute counts that gave the policy.
    """
    acting = policy if policy.is_swap_enabled else as_applied(policy, trees)
    return Explanation(policy, summarize_policy(acting, num_layers, trees, with_overrides=True), stages)


def format_explanation(explanation: Explanation) -> str:
    """Format an explanation as text."""
    summary = explanation.summary
    count = "an unknown number of" if summary.num_layers is None else str(summary.num_layers)
    source = f"; operators of {summary.source}" if summary.source else ""
    if explanation.stages is None:
        blocks = [f"{ConfigFormat.GRAPH.value}; swap is on, {count} layers{source}"]
    else:
        blocks = [
            f"{ConfigFormat.GRAPH.value}; swap is off: this is what MindFormers does by itself, {count} layers{source}"
        ]
        blocks.append("\n".join(map(escape, explanation.stages.formative_lines)))
        if len(explanation.cells()) > 1:
            blocks.append(_format_cells(explanation))
    blocks.append("\n".join(line for group in summary.groups for line in _format_group(group, explanation)))
    blocks += [escape(f"note: {note}") for note in explanation.notes]
    return "\n\n".join(blocks)


def _format_group(group: LayerGroup, explanation: Explanation) -> Iterator[str]:
    indices = group.layers.indices
    if indices is None:
        yield "[every other layer]" if len(explanation.summary.groups) > 1 else "[every layer]"
    else:
        repeat = f" (x{len(indices)})" if len(indices) > 1 else ""
        cells = explanation.cells()
        stages = sorted({cell.stage for cell in cells if set(cell.layers) & set(indices)})
        place = f" on {name_indices('stage', stages)}" if len({cell.stage for cell in cells}) > 1 else ""
        yield f"[{name_indices('layer', indices)}]{repeat}{place}"
    yield from (f"    {line}" for line in format_actions(group.actions))


def _format_cells(explanation: Explanation) -> str:
    """Format the layers of each stage and chunk, and those of them that are recomputed."""
    recomputed = explanation.policy.layer_recompute
    selected: set[int] = set()
    for group in explanation.summary.groups:
        if any(action.action is not MemoryAction.KEEP for action in group.actions):
            selected.update(group.layers.indices or ())
    rows = []
    for cell in sorted(explanation.cells(), key=lambda cell: (cell.stage, cell.chunk)):
        full = [index for index in cell.layers if index in recomputed]
        in_part = [index for index in cell.layers if index in selected and index not in recomputed]
        cells = (", ".join(index_runs(indices)) or "-" for indices in (cell.layers, full, in_part))
        rows.append((str(cell.stage), str(cell.chunk), *cells))
    return format_table(("stage", "chunk", "layers", "fully recomputed", "in part"), rows)


def explanation_to_json(explanation: Explanation) -> dict[str, Any]:
    """Return an explanation as plain data for `--json`."""
    summary, cells, stages = explanation.summary, explanation.cells(), explanation.stages
    return {
        "form": "1.9",
        "is_swap_enabled": stages is None,
        "num_layers": summary.num_layers,
        "operators_from": summary.source,
        "formative_lines": list(stages.formative_lines) if stages is not None else [],
        "stages": [{"stage": cell.stage, "chunk": cell.chunk, "layers": list(cell.layers)} for cell in cells],
        "layers": [group.to_data() for group in summary.groups],
        "notes": list(explanation.notes),
    }


def list_paths(trees: LayerTrees) -> list[dict[str, Any]]:
    """List every name that op_swap and select_recompute accept, with its type, as plain data."""
    by_name: dict[str, dict[str, Any]] = {}
    for tree in Coverage(trees).layer_classes:
        for path, node in tree.walk():
            name = r"\.".join(path)
            kind = f"{'operator' if node.is_primitive else 'cell'} {node.type_name}"
            by_name.setdefault(name, {"name": name, "is": kind, "is_operator": node.is_primitive})
    return list(by_name.values())


def list_paths_2x(model: Model) -> list[dict[str, Any]]:
    """List the names of a model in PyNative mode, as `list_paths` does."""
    layer = model.layers[0]
    return [
        {"name": path.replace(".", "\\."), "is": "cell" if path in layer.cells else "operator"} for path in layer.order
    ]


def format_paths(paths: Sequence[Mapping[str, Any]]) -> str:
    """Format names in one column and their types in the next."""
    width = max(len(path["name"]) for path in paths)
    return "\n".join(f"{path['name']:<{width}}  {path['is']}" for path in paths)
