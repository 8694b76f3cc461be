r"""Expand `recompute_config` with swap off, where MindFormers itself recomputes, to exact layer indices.

Also reports values that MindFormers refuses or ignores. With swap off, mindswap changes nothing.

Source: `LayerSetting` of mindformers 1.9.0. One difference: its log doubles the backslashes of
`'feed_forward\\.mul'`; the log lines here have single ones, as in the specification.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from mindswap.config.nodes import Document, DocumentNode, key_text, show
from mindswap.config.pipeline_layout import (
    SCHEDULER_PATH,
    Layout,
    LayoutError,
    Pipeline,
    read_num_chunks,
    read_pipeline,
)
from mindswap.config.problem import Level, Location, Problem, sort_problems
from mindswap.policy.cell_tree import PatternError, is_match, split_pattern
from mindswap.policy.formats.megatron.options import find_pasted_options, is_option_key
from mindswap.policy.formats.mindformers1.schema import (
    RECOMPUTE_FLAGS,
    RECOMPUTE_KEYS,
    SECTION_OF_KEY,
    SELECT_OPTIONS,
    Expect,
    default_operators,
    is_too_large,
)
from mindswap.policy.formats.mindformers1.settings import Statement, UnknownKey
from mindswap.policy.formats.mindformers1.stage_counts import (
    ALLOWED,
    ALLOWED_BY_ZERO_BUBBLE,
    Counts,
    CountsError,
    read_counts,
)
from mindswap.policy.model import Layers, OpRecompute, Policy
from mindswap.policy.wording import last_key
from mindswap.units import format_count

RULE = "stage-recompute"
EXCLUDE = "_exclude"
NEEDS_SWAP = "a list of layers needs swap_config.swap: True"
LAYERS_NEED_SWAP = f"one count for each stage; {NEEDS_SWAP}"


@dataclass(frozen=True)
class StageRecompute:
    """Recompute of MindFormers with swap off."""

    # policy in layer indices, `is_swap_enabled` False. The select options keep all counted layers, even those that are
    # fully recomputed; as everywhere, full recompute overrides select recompute
    policy: Policy
    # log lines of MindFormers as in the specification, without time and level; those of exclude options only if these
    # are set. Empty if there is an error
    formative_lines: tuple[str, ...]
    problems: tuple[Problem, ...]  # errors: values that MindFormers refuses; warnings: values that it ignores
    layout: Layout | None = None  # layers of each stage and chunk; None if they cannot be distributed
    statements: tuple[Statement, ...] = ()  # each operator pattern with its location and layers


def expand_stage_recompute(document: Document, num_layers: int) -> StageRecompute:
    """Parse `recompute_config` as MindFormers does with swap off."""
    problem = find_layout_problem(document, num_layers)
    if problem is not None:
        return StageRecompute(Policy(), (), (problem,))
    return _Expansion(document, num_layers, read_pipeline(document)).result()


def recomputes_scores(document: Document) -> bool:
    """Return whether MindFormers recomputes the scores of attention, together with selected operators, with swap off.

    It does in the legacy Llama without flash attention.
    """
    is_llama = document.value("model", "arch", "type") == "LlamaForCausalLM"
    return is_llama and document.value("model", "model_config", "use_flash_attention") is not True


def find_layout_problem(document: Document, num_layers: int) -> Problem | None:
    """Return the reason for which the layers cannot be distributed over pipeline stages; None if they can."""
    pipeline = read_pipeline(document)
    try:
        pipeline.layout(num_layers)
        return None
    except LayoutError as error:
        reason = str(error)
    has_offset = document.get("model", "model_config", "offset") is not None
    path = "model.model_config.offset" if has_offset else "parallel_config.pipeline_stage"
    if pipeline.lacks_chunks:
        path = ".".join(SCHEDULER_PATH)
    elif not has_offset and pipeline.num_stages * pipeline.num_chunks <= num_layers:
        reason = (
            f"{num_layers} layers cannot be spread evenly over {format_count(pipeline.num_stages, 'stage')} x "
            f"{format_count(pipeline.num_chunks, 'chunk')}, and model.model_config.offset is missing"
        )
    location = document.location_of(*path.split("."))
    allowed = "extra layers, one number for each stage"
    return Problem(location, RULE, Level.ERROR, f"{path}: {reason}", allowed, _layout_fix(pipeline, num_layers))


def _layout_fix(pipeline: Pipeline, num_layers: int) -> str:
    if pipeline.lacks_chunks:
        return "both, or pipeline_scheduler: 1f1b"
    if pipeline.num_stages * pipeline.num_chunks > num_layers:
        return f"fewer stages or chunks: {num_layers} layers have to do for all of them"
    return f"offset: {pipeline.even_offset(num_layers)}"


def find_unknown_keys(document: Document) -> Iterator[Problem]:
    """Yield problems of unknown keys in recompute_config, which MindFormers refuses with swap off.

    All options of Megatron-LM are one problem.
    """
    section, allowed = document.get("recompute_config"), ", ".join(RECOMPUTE_KEYS)
    entries = section.unique_entries() if section is not None else ()
    pasted = find_pasted_options(entries, "recompute_config", document.file)
    if pasted is not None:
        yield Problem(pasted.location, RULE, Level.ERROR, pasted.message, allowed, pasted.fix)
    for entry in entries:
        if entry.key not in RECOMPUTE_KEYS and not is_option_key(entry.key):
            path = f"recompute_config.{key_text(entry.key)}"
            fix = UnknownKey(path, entry, RECOMPUTE_KEYS, is_in_entry=False).fix(SECTION_OF_KEY)
            yield Problem(entry.location, RULE, Level.ERROR, f"{path}: unknown key", allowed, fix)


class _Selection(NamedTuple):
    """One operator pattern of a select option, with its counts."""

    statement: Statement
    counts: Counts


@dataclass
class _Expansion:
    """Parser of `recompute_config` with swap off; `result` returns everything that it collected."""

    document: Document
    num_layers: int
    pipeline: Pipeline
    problems: list[Problem] = field(default_factory=list)
    layer_counts: Counts | None = None
    selections: dict[str, dict[str, _Selection]] = field(default_factory=dict)  # option -> pattern -> selection
    flags: dict[str, bool] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.layout = self.pipeline.layout(self.num_layers)

    def _read(self) -> None:
        section = self.document.get("recompute_config")
        if section is not None and not section.is_null and section.entries is None:
            self._refuse(section, "recompute_config", Expect.MAPPING.value)
            section = None
        elif section is not None and is_too_large(section):
            message, allowed = "recompute_config: the section is too large", Expect.SMALL_SECTION.value
            self.report(section.location, message, Level.ERROR, allowed)
            section = None
        values = {entry.key: entry for entry in section.unique_entries()} if section is not None else {}
        self.problems += find_unknown_keys(self.document)
        off = DocumentNode(Location(self.document.file), False)
        nodes = {key: values[key].value if key in values else off for key in ("recompute", *SELECT_OPTIONS)}
        self.layer_counts = self._counts(nodes["recompute"], "recompute_config.recompute")
        for option in SELECT_OPTIONS:
            self._read_select(option, nodes[option])
        for option in ("select_recompute", "select_comm_recompute"):
            self._apply_exclude(option)
        for key in RECOMPUTE_FLAGS:
            if key in values:
                self._read_flag(key, values[key].value, nodes["recompute"])

    def _read_select(self, option: str, node: DocumentNode) -> None:
        path = f"recompute_config.{option}"
        self.selections[option] = {}
        if node.entries is not None:
            self._read_select_mapping(option, path, node)
        elif node.items is not None and all(isinstance(item.value, str) for item in node.items):
            self._read_select_names(option, path, node, node.items)
        elif not option.endswith(EXCLUDE):
            self._read_select_counts(option, path, node)
        elif node.value is not False:
            message = f"{path}: {show(node)} names no operator, so nothing is excluded"
            self.report(node.location, message, Level.WARNING, Expect.SELECT.value, "name the operators")

    def _read_select_mapping(self, option: str, path: str, node: DocumentNode) -> None:
        """Parse a mapping of operator patterns to counts."""
        for entry in node.unique_entries():
            entry_path = f"{path}['{key_text(entry.key)}']"
            if not isinstance(entry.key, str):
                message = f"{entry_path}: {show(entry.key)} is not an operator name"
                self.report(entry.location, message, Level.ERROR, Expect.PATTERN.value, f"'{entry.key}'")
                continue
            self._add(option, entry_path, entry.location, entry.key, self._counts(entry.value, entry_path))

    def _read_select_names(self, option: str, path: str, node: DocumentNode, items: tuple[DocumentNode, ...]) -> None:
        """Parse a list of operator patterns, which apply to all layers."""
        all_layers = read_counts(DocumentNode(node.location, True), self.layout)
        for index, item in enumerate(items):
            self._add(option, f"{path}[{index}]", item.location, item.value, all_layers)
        if len(items) == 1 and self.layout.is_zero_bubble_v:
            message = f"{path}: {show(node)}: MindFormers stops at one name with zero_bubble_v"
            fix = f"{option}: {{'{key_text(items[0].value)}': True}}"
            self.report(node.location, message, Level.ERROR, "two names or more, or a mapping", fix)

    def _read_select_counts(self, option: str, path: str, node: DocumentNode) -> None:
        """Parse counts for the default operators of an option."""
        counts = self._counts(node, path)
        names = default_operators(option, self.document.is_legacy)
        if counts is not None and counts.is_rewritten and len(names) > 1:
            message = f"{path}: MindFormers stops at True or a number too large here, for the second operator"
            self.report(node.location, message, Level.ERROR, "numbers of layers that are there", "name them")
        for name in names:
            self._add(option, path, node.location, name, counts, is_default=True)

    def _add(
        self, option: str, path: str, location: Location, pattern: str, counts: Counts | None, is_default: bool = False
    ) -> None:
        if counts is not None:
            statement = Statement(
                option=option,
                path=path,
                location=location,
                pattern=pattern,
                pattern_path=path,
                pattern_location=location,
                layers=self._layers(counts),
                layers_path=path,
                is_default=is_default,
            )
            self.selections[option][pattern] = _Selection(statement, counts)

    def _counts(self, node: DocumentNode, path: str) -> Counts | None:
        try:
            counts = read_counts(node, self.layout)
        except CountsError as error:
            advice = f"{ALLOWED_BY_ZERO_BUBBLE}; {NEEDS_SWAP}" if self.layout.is_zero_bubble_v else LAYERS_NEED_SWAP
            fix = f"{last_key(path)}: {error.fix}" if error.fix else advice
            allowed = ALLOWED_BY_ZERO_BUBBLE if self.layout.is_zero_bubble_v else ALLOWED
            self.report(error.node.location, f"{path}: {error}", Level.ERROR, allowed, fix)
            return None
        rows = [list(row) for row in counts.rows]
        # The second row of zero_bubble_v is reversed before it is read, so no suggestion has its order.
        suggestion = ALLOWED_BY_ZERO_BUBBLE if self.layout.is_zero_bubble_v else rows if len(rows) > 1 else rows[0]
        for warning in counts.warnings:
            self.report(node.location, f"{path}: {warning}", Level.WARNING, fix=f"{last_key(path)}: {suggestion}")
        return counts

    def _apply_exclude(self, option: str) -> None:
        """Remove from a select option one pattern per pattern of its exclude option that matches it, in all layers."""
        selected = self.selections[option]
        for name, (excluded, _) in self.selections[option + EXCLUDE].items():
            pattern = next((candidate for candidate in selected if _patterns_match(name, candidate)), None)
            if pattern is None:
                continue
            entry, counts = selected.pop(pattern)
            if any(map(any, counts.rows)):  # if nothing was selected, the exclusion changes nothing
                message = (
                    f"{excluded.path}: takes '{pattern}' of {entry.path} ({entry.location}) out in every layer, "
                    "whatever layers it names itself"
                )
                self.report(excluded.location, message, Level.WARNING, fix="delete one of the two")

    def _read_flag(self, key: str, node: DocumentNode, recompute: DocumentNode) -> None:
        path = f"recompute_config.{key}"
        if not isinstance(node.value, bool):
            self._refuse(node, path, Expect.BOOL.value)
            return
        self.flags[key] = node.value
        if node.value == RECOMPUTE_FLAGS[key]:
            return
        if key != "recompute_slice_activation":
            message = f"{path}: MindFormers 1.9.0 ignores it with swap off"
            self.report(node.location, message, Level.WARNING, fix="delete it; with swap: True it acts")
        elif not self.document.is_legacy:
            self.report(node.location, f"{path}: not supported with use_legacy: False", Level.ERROR, "False")
        elif recompute.value is not True:
            self.report(node.location, f"{path}: acts only with recompute: True", Level.WARNING)

    def _check_pipeline(self) -> None:
        """Report an offset that adds too many layers, and a number of chunks that is not in effect."""
        total = sum(map(sum, self.layout.sizes))
        offset = self.document.get("model", "model_config", "offset")
        if total > self.num_layers and offset is not None:
            message = (
                f"model.model_config.offset: {show(offset)} is added to every cell it is not written for, which makes "
                f"{total} layers of {self.num_layers}; the last stages get fewer"
            )
            self.report(offset.location, message, Level.WARNING, "one number for each stage of each chunk")
        is_on = self.document.get("parallel", "pipeline_config", "pipeline_interleave")
        written = read_num_chunks(self.document)
        if written > 1 and (is_on is None or is_on.value is not True):
            location = self.document.location_of("model", "model_config", "pp_interleave_num")
            num_chunks = self.pipeline.num_chunks
            effect = f"{num_chunks} chunks are counted here" if num_chunks > 1 else "1 chunk counts"
            message = f"model.model_config.pp_interleave_num: acts only with pipeline_interleave: True; {effect}"
            fix = "parallel: {pipeline_config: {pipeline_interleave: True, pipeline_scheduler: '1f1b'}}"
            self.report(location, message, Level.WARNING, fix=fix)

    def _refuse(self, node: DocumentNode, path: str, allowed: str) -> None:
        self.report(node.location, f"{path}: {show(node)} is {node.kind}", Level.ERROR, allowed)

    def report(self, location: Location, message: str, level: Level, allowed: str = "", fix: str = "") -> None:
        self.problems.append(Problem(location, RULE, level, message, allowed, fix))

    def result(self) -> StageRecompute:
        self._check_pipeline()
        self._read()
        problems = sort_problems(self.problems)
        if self.layer_counts is None:
            return StageRecompute(Policy(), (), problems, self.layout)
        statements = tuple(
            selection.statement for by_pattern in self.selections.values() for selection in by_pattern.values()
        )
        fields: dict[str, Any] = {option: [] for option in SELECT_OPTIONS}
        for statement in statements:
            if statement.layers and statement.pattern is not None:
                fields[statement.option].append(OpRecompute(statement.pattern, statement.layers))
        fields.update(self.flags)
        policy = Policy(False, layer_recompute=self._layers(self.layer_counts), **fields)
        has_errors = any(problem.level is Level.ERROR for problem in problems)
        lines = () if has_errors else self._formative_lines(self.layer_counts)
        return StageRecompute(policy, lines, problems, self.layout, statements)

    def _layers(self, counts: Counts) -> Layers:
        return Layers(self.layout.first_layers(counts.rows))

    def _formative_lines(self, layer_counts: Counts) -> tuple[str, ...]:
        lines = [f"Formative layer_recompute: {layer_counts.text}"]
        for option, by_pattern in self.selections.items():
            if by_pattern or not option.endswith(EXCLUDE):
                texts = {repr(pattern): selection.counts.text for pattern, selection in by_pattern.items()}
                pairs = (f"{pattern.replace(2 * chr(92), chr(92))}: {text}" for pattern, text in texts.items())
                lines.append(f"Formative {option}: {{{', '.join(pairs)}}}")
        return tuple(lines)


def _patterns_match(left: str, right: str) -> bool:
    """Return whether two patterns match part by part: one part, as a regular expression, matches the other's text."""
    left_parts, right_parts = split_pattern(left), split_pattern(right)
    if len(left_parts) != len(right_parts):
        return False
    return all(_matches(a, b) or _matches(b, a) for a, b in zip(left_parts, right_parts, strict=True))


def _matches(pattern: str, text: str) -> bool:
    try:
        return is_match(pattern, text)
    except PatternError:
        return False
