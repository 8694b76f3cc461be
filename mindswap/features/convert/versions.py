"""Convert settings between versions of MindFormers: `mindswap convert --to 2.x | 1.9`.

Settings are matched by name, or with `--trace` by the tensors of a recorded step.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from mindswap.config.nodes import Document
from mindswap.config.parse import parse_document
from mindswap.config.problem import Level, Location, Problem
from mindswap.config.render import block_lines
from mindswap.errors import LaunchError, PolicyError
from mindswap.features.convert.stage_counts import Request, load_trees, to_index_form
from mindswap.policy.cell_tree import CellNode, load_layer_trees
from mindswap.policy.formats.mindformers1.read import find_num_layers
from mindswap.policy.formats.mindformers2.conversion import ConvertedSettings, to_1_9, to_2x
from mindswap.policy.formats.mindformers2.read import find_num_layers_2x
from mindswap.policy.formats.mindformers2.renaming import LayerNames, replace_sections
from mindswap.policy.formats.mindformers2.tables import (
    SECTIONS_1_9,
    SECTIONS_2X,
    ConfigFormat,
    Model,
    dense_layer,
    find_format,
    find_mixed_sections,
)
from mindswap.policy.model import Policy
from mindswap.policy.resolve import resolve_layer
from mindswap.pynative.by_tensor import (
    StorageTreatment,
    choose_1_9,
    choose_2x,
    differences,
    treatment_in_1_9,
    treatment_in_2x,
)
from mindswap.pynative.trace import Trace
from mindswap.report.problems import escape
from mindswap.rules.checker import check_document, check_pynative, check_shape, model_section
from mindswap.steps.recorded import read_trace
from mindswap.units import format_bytes

# `--trace FILE`: tensors of a recorded step that the settings offload or recompute, before and after.


@dataclass(frozen=True, eq=False)
class Tensors:
    """Tensors of a recorded step."""

    file: str  # path of the trace
    trace: Trace  # its content
    layers: tuple[CellNode, ...]  # cell tree of each layer, with the names of 1.9
    model: Model  # names in its layers that 2.x supports

    @property
    def num_layer_ops(self) -> int:
        """Number of backward operators per layer."""
        count = sum(not operator.is_forward and operator.layer_index is not None for operator in self.trace.operators)
        return max(count // self.trace.num_layers, 1)

    def of_policy(self, policy: Policy) -> StorageTreatment:
        """Return the tensors that MindFormers 1.9 offloads and recomputes under a policy."""
        if not policy.is_swap_enabled:
            policy = replace(policy, is_swap_enabled=True, layer_swap=(), op_swap=())
        return treatment_in_1_9(self.trace, [resolve_layer(policy, i, tree) for i, tree in enumerate(self.layers)])

    def refuse_nothing(self, before: StorageTreatment) -> None:
        """Refuse a trace of which the configuration offloads nothing: most likely it is of another model.

        Raises:
            LaunchError: if nothing is offloaded.
        """
        if not before.moved:
            raise LaunchError(
                f"{self.file}: nothing that the configuration swaps is saved in this step\n"
                "    fix:     a trace of the same model; or convert by name, without --trace"
            )

    def compared(
        self, converted: ConvertedSettings, before: StorageTreatment, after: StorageTreatment, version: str
    ) -> ConvertedSettings:
        """Add the differences in offloaded and recomputed tensors to the converted settings.

        Args:
            converted: the converted settings.
            before: tensors under the original settings.
            after: tensors under the converted settings.
            version: target version, for messages.
        """
        differing = [
            *differences(self.trace, before.moved, after.moved, "moves", version),
            *differences(self.trace, before.recomputed, after.recomputed, "recomputes", version),
        ]
        storage_sets = (before.moved, after.moved, before.recomputed, after.recomputed)
        sizes = [
            format_bytes(sum(self.trace.storages[index].size_bytes for index in storages)) for storages in storage_sets
        ]
        by = "by tensor of {}: moved {} before, {} now; recomputed {} before, {} now".format(self.file, *sizes)
        return replace(converted, lost=(*converted.lost, *differing), by=by)


def read_tensors(file: str, num_layers: int) -> Tensors:
    """Read a trace of `mindswap trace`, and check its number of layers.

    Raises:
        DataError: if the file cannot be read.
        LaunchError: if the number of layers differs.
    """
    step, _ = read_trace(file)
    if step.trace.num_layers != num_layers:
        raise LaunchError(
            f"{file}: has {step.trace.num_layers} layers, the configuration {num_layers}\n"
            "    fix:     a trace of the same model"
        )
    paths = dense_layer()
    return Tensors(file, step.trace, step.layers, Model((paths,) * num_layers, "dense models of 2.x"))


@dataclass(frozen=True)
class Rewritten:
    """Result of a conversion."""

    text: str  # the complete configuration
    problems: Sequence[Problem]  # problems of the conversion and of its result
    data: Mapping[str, object]  # additional data for `--json`


VERSIONS = {form.version: form for form in ConfigFormat}
# Number of operators per layer if no table has the model.
ASSUMED_LAYER_OPS = 60


def convert_versions(request: Request, to: str, ops_per_layer: int | None, trace: str | None) -> Rewritten:
    """Convert one file to another version of MindFormers.

    Args:
        request: the file.
        to: target version, one of `VERSIONS`.
        ops_per_layer: number of backward operators per layer; None for that of the trace, or of a table.
        trace: file with a recorded step of the model; None converts by name.

    Returns:
        The converted configuration.

    Raises:
        PolicyError: if the settings are wrong, or the file cannot be edited.
        LaunchError: if there is nothing to convert.
    """
    document = request.document
    source = SECTIONS_1_9 if to == "2.x" else SECTIONS_2X
    if not any(document.get(name) is not None for name in source):
        missing = " and no ".join(source)
        raise LaunchError(f"{document.file}: nothing to convert to {to}: there is no {missing}")
    double = find_mixed_sections(document)
    if double is not None:
        raise PolicyError([double])
    num_layers = request.find_num_layers(find_num_layers(document) or find_num_layers_2x(document))
    tensors = read_tensors(trace, num_layers) if trace else None
    ops = (ops_per_layer, "assumed") if ops_per_layer else _layer_ops(document, tensors)
    converted = (_to_2x if to == "2.x" else _to_1_9)(document, num_layers, tensors, ops)
    origin = "1.9" if to == "2.x" else "2.x"
    comment = f"from MindFormers {origin}, {escape(converted.by)} (mindswap convert --to {to})"
    lost = tuple(escape(f"not the same: {line}") for line in dict.fromkeys(converted.lost))
    text = replace_sections(request.text, source, converted.sections, (comment, *lost), document.file)
    read_back = _read_back(to, text, converted, num_layers, request.target)
    problems = [*_losses(document, source, converted, to), *read_back]
    return Rewritten(text, problems, {"sections": converted.sections, "lost": list(converted.lost)})


def _layer_ops(document: Document, tensors: Tensors | None) -> tuple[int, str]:
    """Return the number of backward operators per layer (by trace, else forward operators by table) and its origin."""
    if tensors is not None:
        return tensors.num_layer_ops, f"in {tensors.file}"
    layer = _layer_1_9(document)
    return sum(cell.is_primitive for _, cell in layer.walk()) if layer is not None else ASSUMED_LAYER_OPS, "assumed"


def _layer_1_9(document: Document) -> CellNode | None:
    """Return a layer of the model in 1.9 by table; tables exist for models without experts only."""
    trees = load_layer_trees(model_section(document), 1)
    return trees.layers[0] if trees is not None else None


def _to_2x(document: Document, num_layers: int, tensors: Tensors | None, ops: tuple[int, str]) -> ConvertedSettings:
    policy = check_shape(document, num_layers).require_policy()
    checked = check_document(document, num_layers)
    if find_format(document) is ConfigFormat.GRAPH:
        checked.require_policy()
    if not policy.is_swap_enabled and document.get("recompute_config") is not None:
        index_form = to_index_form(document, num_layers, load_trees(document, checked))
        policy = replace(index_form.policy, is_swap_enabled=False)
    stages = max(
        document.count("parallel_config", "pipeline_stage"), document.count("parallelism", "pipeline_parallel")
    )
    layer, layer_2x = _layer_1_9(document), dense_layer()
    names = LayerNames(layer, frozenset(layer_2x.order), layer_2x.cells) if layer is not None else LayerNames()
    choose = before = None
    if tensors is not None:
        before = tensors.of_policy(policy)
        if policy.is_swap_enabled and (policy.layer_swap or policy.op_swap):
            tensors.refuse_nothing(before)
        choose = partial(choose_2x, tensors.trace, before.moved, tensors.model.layers[0])
    converted = to_2x(
        policy=policy,
        num_layers=num_layers,
        num_stages=stages,
        num_layer_ops=ops[0],
        names=names,
        by_tensor=choose,
        source=ops[1],
    )
    # Sections that are missing in the file are not added.
    section_of_1_9 = {"swap": "swap_config", "recompute": "recompute_config"}
    sections = {
        k: v
        for k, v in converted.sections.items()
        if document.get(section_of_1_9.get(k, "recompute_config")) is not None
    }
    converted = replace(converted, sections=sections)
    if tensors is None or before is None:
        return converted
    effect = check_pynative(_sections_alone(converted), num_layers, tensors.model).effect
    return tensors.compared(converted, before, treatment_in_2x(tensors.trace, effect), "2.x")


def _sections_alone(converted: ConvertedSettings) -> Document:
    return parse_document("\n".join(block_lines(converted.sections, 0, 2)), "the result")


def _to_1_9(document: Document, num_layers: int, tensors: Tensors | None, ops: tuple[int, str]) -> ConvertedSettings:
    stated = find_num_layers_2x(document)
    model = tensors.model if tensors is not None else None
    checked = check_pynative(document, num_layers if stated is None else None, model)
    if checked.errors:
        raise PolicyError(checked.problems)
    use_legacy = find_format(document) is ConfigFormat.GRAPH and document.is_legacy
    if tensors is None:
        return to_1_9(checked.effect, ops[0], use_legacy, source=ops[1])
    before = treatment_in_2x(tensors.trace, checked.effect)
    if checked.effect.swaps_anything:
        tensors.refuse_nothing(before)
    use_legacy = any(child.name == "attention" for child in tensors.layers[0].children)
    named = {".".join(path) for layer in tensors.layers for path, _ in layer.walk()}
    chosen = choose_1_9(tensors.trace, before.moved, named.__contains__)
    converted = to_1_9(checked.effect, ops[0], use_legacy, chosen, ops[1])
    policy = check_shape(_sections_alone(converted), num_layers).policy
    return converted if policy is None else tensors.compared(converted, before, tensors.of_policy(policy), "1.9")


def _losses(document: Document, source: tuple[str, ...], converted: ConvertedSettings, version: str) -> list[Problem]:
    """Return losses as warnings at the first section, and a warning if the rest of the file is of another version."""
    location = next(entry.location for name in source if (entry := document.entry(name)) is not None)
    problems = [Problem(location, "convert", Level.WARNING, f"not the same: {line}") for line in converted.lost]
    form = find_format(document)
    if form is not VERSIONS[version]:
        message = f"only swap and recompute are converted; the rest of the file is of {form.value}"
        fix = f"move these sections into a configuration of {VERSIONS[version].value} of the same model"
        problems.append(Problem(location, "convert", Level.WARNING, message, fix=fix))
    return problems


def _read_back(to: str, text: str, converted: ConvertedSettings, num_layers: int, target: str) -> tuple[Problem, ...]:
    """Check the result with the rules of the target version; for 1.9 only the sections, and only for errors."""
    if to == "2.x":
        return check_pynative(parse_document(text, target), num_layers).problems
    problems = check_document(_sections_alone(converted), num_layers).errors
    return tuple(replace(problem, location=Location(target)) for problem in problems)
