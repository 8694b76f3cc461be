"""Options of Megatron-LM and MindSpeed for recomputation, offloading and the distribution of layers over stages.

Source of those of MindSpeed: mindspeed/features_manager (commit 028de58), mindspeed_llm/features_manager (c77308a).
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from enum import Enum
from typing import Any

from mindswap.config.findings import Finding
from mindswap.config.nodes import DocumentNode, MappingEntry, key_text
from mindswap.config.problem import Level, Location, Problem

RULE = "megatron-options"


class OptionKind(Enum):
    """Kind of value that an option takes."""

    FLAG = "nothing"
    NUMBER = "a number from 1"
    CHOICE = "one of"
    NAMES = "names of modules"
    NUMBERS = "numbers with commas between them"
    TEXT = "a value"


@dataclass(frozen=True)
class Option:
    """One option of Megatron-LM."""

    kind: OptionKind  # kind of its value
    help: str  # text of `--help`
    choices: tuple[str, ...]  # accepted values of a CHOICE
    field: str = ""  # attribute of `MegatronOptions`


def _option(kind: OptionKind, help: str, *choices: str) -> Any:
    default = False if kind is OptionKind.FLAG else None
    return field(default=default, metadata={"option": Option(kind, help, choices)})


@dataclass(frozen=True)
class MegatronOptions:
    """Values of the options; None or False if an option is missing."""

    recompute_activations: bool = _option(OptionKind.FLAG, "same as --recompute-granularity selective")
    recompute_granularity: str | None = _option(OptionKind.CHOICE, "full layers, or parts of them", "full", "selective")
    recompute_method: str | None = _option(
        OptionKind.CHOICE, "groups of layers, or the first of each stage", "uniform", "block"
    )
    recompute_num_layers: int | None = _option(
        OptionKind.NUMBER, "layers per group (uniform), or per stage or chunk (block)"
    )
    recompute_modules: tuple[str, ...] | None = _option(
        OptionKind.NAMES, "modules that selective recomputes; default core_attn"
    )
    distribute_saved_activations: bool = _option(
        OptionKind.FLAG, "shard kept activations over the tensor parallel ranks"
    )
    fine_grained_activation_offloading: bool = _option(OptionKind.FLAG, "offload the inputs of --offload-modules")
    offload_modules: tuple[str, ...] | None = _option(OptionKind.NAMES, "modules whose inputs are offloaded")
    num_layers: int | None = _option(OptionKind.NUMBER, "layers of the model")
    tensor_model_parallel_size: int | None = _option(OptionKind.NUMBER, "tensor parallel ranks")
    sequence_parallel: bool = _option(OptionKind.FLAG, "sequence parallel")
    pipeline_model_parallel_size: int | None = _option(OptionKind.NUMBER, "pipeline stages")
    num_layers_per_virtual_pipeline_stage: int | None = _option(OptionKind.NUMBER, "layers per virtual chunk")
    num_virtual_stages_per_pipeline_rank: int | None = _option(OptionKind.NUMBER, "virtual chunks per stage")
    decoder_first_pipeline_num_layers: int | None = _option(OptionKind.NUMBER, "layers of the first stage")
    decoder_last_pipeline_num_layers: int | None = _option(OptionKind.NUMBER, "layers of the last stage")
    account_for_embedding_in_pipeline_split: bool = _option(OptionKind.FLAG, "the embedding counts as a layer")
    account_for_loss_in_pipeline_split: bool = _option(OptionKind.FLAG, "the loss counts as a layer")
    pipeline_model_parallel_layout: str | None = _option(
        OptionKind.TEXT, "contents of each stage and chunk, e.g. 'Et*11|t*12|t*12|t*8mL'"
    )
    num_layer_list: tuple[int, ...] | None = _option(OptionKind.NUMBERS, "MindSpeed: layers of each stage")
    noop_layers: tuple[int, ...] | None = _option(OptionKind.NUMBERS, "MindSpeed: layers that compute nothing")
    schedules_method: str | None = _option(OptionKind.CHOICE, "MindSpeed: V-shaped schedule", "dualpipev")
    enable_recompute_layers_per_pp_rank: bool = _option(
        OptionKind.FLAG, "MindSpeed: --recompute-num-layers is per stage, not per virtual chunk"
    )
    recompute_in_advance: bool = _option(OptionKind.FLAG, "MindSpeed: the last layer is not recomputed")
    recompute_activation_function: bool = _option(OptionKind.FLAG, "MindSpeed: recompute activation functions")
    recompute_activation_function_num_layers: int | None = _option(OptionKind.NUMBER, "layers per stage or chunk")
    recompute_norm: bool = _option(OptionKind.FLAG, "MindSpeed: recompute both norms")
    recompute_norm_num_layers: int | None = _option(OptionKind.NUMBER, "layers per stage or chunk")
    recompute_mla_up_proj: bool = _option(OptionKind.FLAG, "MindSpeed: recompute the up projections of MLA")
    swap_attention: bool = _option(
        OptionKind.FLAG, "MindSpeed: offload the saved tensors of attention; recompute --recompute-num-layers MLPs"
    )
    swap_modules: str | None = _option(OptionKind.TEXT, "MindSpeed: modules of --swap-attention, separated by commas")
    mla_swap_core_attn_out: bool = _option(OptionKind.FLAG, "MindSpeed: offload the output of core attention")
    moe_zero_memory: str | None = _option(
        OptionKind.CHOICE, "MindSpeed: recompute inside experts", "disable", "level0", "level1"
    )
    moe_zero_memory_num_layers: int | None = _option(OptionKind.NUMBER, "layers per stage with level1")
    swap_optimizer: bool = _option(OptionKind.FLAG, "MindSpeed: optimizer states on the host")
    swap_optimizer_times: int | None = _option(OptionKind.NUMBER, "MindSpeed: number of parts of the optimizer step")
    locations: tuple[tuple[str, Location], ...] = ()  # (attribute, location) of each given option

    def location_of(self, field: str) -> Location:
        """Return the location of an option; that of the first given option if it is missing."""
        locations = dict(self.locations)
        return locations.get(field) or next(iter(locations.values()), Location("command line"))

    def override(self, other: "MegatronOptions") -> "MegatronOptions":
        """Return these options, overridden by the given options of `other`."""
        values = {name: getattr(other, name) for name, _ in other.locations}
        kept = tuple((name, location) for name, location in self.locations if name not in values)
        return replace(self, **values, locations=kept + other.locations)

    @property
    def num_recomputed(self) -> int:
        """Value of --recompute-num-layers; default 1, as in Megatron-LM."""
        return self.recompute_num_layers or 1

    @property
    def num_noop_layers(self) -> int:
        """Layers of --noop-layers, which compute nothing."""
        return len({*(self.noop_layers or ())})

    @property
    def num_model_layers(self) -> int | None:
        """Layers of the model: --num-layers without --noop-layers; None if not given."""
        return None if self.num_layers is None else self.num_layers - self.num_noop_layers

    @property
    def zero_memory(self) -> str:
        """`level0`, `level1`, or "" if --moe-zero-memory is off."""
        return "" if self.moe_zero_memory in (None, "disable") else self.moe_zero_memory

    @property
    def asks_recompute(self) -> bool:
        """Return whether any option requests recompute."""
        is_with_swap = self.swap_attention and self.recompute_num_layers is not None
        return bool(
            self.granularity
            or self.recompute_activation_function
            or self.recompute_norm
            or self.recompute_mla_up_proj
            or self.zero_memory
            or is_with_swap
        )

    @property
    def counts_layers(self) -> bool:
        """Whether the layers that are recomputed depend on the stages."""
        counts = (self.recompute_num_layers, self.recompute_activation_function_num_layers)
        more = (self.recompute_norm_num_layers, self.moe_zero_memory_num_layers)
        return self.granularity == "full" or any(count is not None for count in (*counts, *more))

    @property
    def asks_offload(self) -> bool:
        """Return whether any option requests offload of activations."""
        return self.fine_grained_activation_offloading or self.swap_attention or self.mla_swap_core_attn_out

    @property
    def granularity(self) -> str | None:
        """`full`, `selective` or None; --recompute-activations takes precedence."""
        return "selective" if self.recompute_activations else self.recompute_granularity


def option_name(field: str) -> str:
    """Return the name of an option on the command line, e.g. `--recompute-method`."""
    return "--" + field.replace("_", "-")


# Name on the command line -> option.
OPTIONS: dict[str, Option] = {
    option_name(option_field.name): replace(option_field.metadata["option"], field=option_field.name)
    for option_field in fields(MegatronOptions)
    if "option" in option_field.metadata
}


# Options of Megatron-LM that a YAML file has as keys.


def is_option_key(key: object) -> bool:
    """Return whether a key of a YAML file is an option of Megatron-LM: `recompute_method`, or with dashes."""
    return isinstance(key, str) and option_name(key) in OPTIONS


def find_pasted_options(entries: Iterable[MappingEntry], section: str, file: str) -> Finding | None:
    """Return a finding about keys of a section that are options of Megatron-LM; None without one.

    Args:
        entries: entries of the section.
        section: key path of the section; "" for the top level.
        file: name of the configuration, for the suggested command.
    """
    pasted = [entry for entry in entries if is_option_key(entry.key)]
    if not pasted:
        return None
    prefix = f"{section}." if section else ""
    names = ", ".join(f"{prefix}{key_text(entry.key)}" for entry in pasted)
    are = "is an option" if len(pasted) == 1 else "are options"
    words = [word for entry in pasted for word in _command_words(option_name(str(entry.key)), entry.value)]
    command = f"mindswap convert --from megatron {' '.join(words)}".rstrip()
    fix = f"delete {'it' if len(pasted) == 1 else 'them'}; the same settings: {command} {file} -o FILE"
    return Finding(pasted[0].location, f"{names}: {are} of Megatron-LM, which MindFormers does not read", fix=fix)


def _command_words(name: str, node: DocumentNode) -> list[str]:
    """Return an option and its values as words of a command line; empty for a flag that is off."""
    if isinstance(node.value, bool) or node.is_null:
        return [name] if node.value else []
    values = [item.value for item in node.items] if node.items is not None else [node.value]
    return [name, *map(str, values)]


def read_tokens(tokens: Sequence[str]) -> dict[str, list[str]]:
    """Return the values of each known option in the words of a command; other words are skipped.

    If an option is repeated, the last occurrence applies, as in argparse.
    """
    values_by_option: dict[str, list[str]] = {}
    name = None
    for token in tokens:
        if token.startswith("--"):
            name, equals, value = token.partition("=")
            if name in OPTIONS:
                values_by_option[name] = [value] if equals else []
        elif name in OPTIONS:
            option = OPTIONS[name]
            if option.kind is OptionKind.NAMES or (option.kind is not OptionKind.FLAG and not values_by_option[name]):
                values_by_option[name].append(token)
    return values_by_option


def read_options(
    option_texts: Mapping[str, Sequence[str]], locations: Mapping[str, Location]
) -> tuple[MegatronOptions, tuple[Problem, ...]]:
    """Parse the values of options.

    Args:
        option_texts: option name -> values as text.
        locations: option name -> location.

    Returns:
        The valid options, and a problem for each invalid one.
    """
    values: dict[str, object] = {}
    problems = []
    for name, texts in option_texts.items():
        option = OPTIONS[name]
        value, allowed = _read_value(option, texts)
        if value is None:
            shown = " ".join(texts) or "(nothing)"
            fix = f"give {name} on the command line of mindswap convert" if "$" in shown or "`" in shown else ""
            reason = "not known without running the script" if fix else f"not {allowed}"
            message = f"{name}: {shown} is {reason}" if texts else f"{name}: has no value"
            problems.append(
                Problem(
                    location=locations[name],
                    rule=RULE,
                    level=Level.ERROR,
                    message=message,
                    allowed=allowed,
                    fix=fix,
                    subject=name,
                )
            )
        else:
            values[option.field] = value
    located = tuple((OPTIONS[name].field, locations[name]) for name in option_texts if OPTIONS[name].field in values)
    return MegatronOptions(**values, locations=located), tuple(problems)  # type: ignore[arg-type]


def _read_value(option: Option, texts: Sequence[str]) -> tuple[object, str]:
    """Return the value, None if the text is invalid, and the allowed values in words."""
    text = " ".join(texts)
    if option.kind is OptionKind.FLAG:
        return True, ""
    if option.kind is OptionKind.NUMBER:
        is_number = text.isascii() and text.isdecimal() and int(text[:9]) >= 1 and len(text) < 6
        return int(text) if is_number else None, option.kind.value
    if option.kind is OptionKind.NUMBERS:
        return _numbers(text), option.kind.value
    if option.kind is OptionKind.CHOICE:
        return (text if text in option.choices else None), " or ".join(option.choices)
    is_resolved = bool(texts) and not any(mark in text for mark in "$`")
    if option.kind is OptionKind.NAMES:
        return (tuple(_names(texts)) if is_resolved else None), option.kind.value
    return (text if is_resolved else None), option.kind.value


def _numbers(text: str) -> tuple[int, ...] | None:
    parts = [part.strip() for part in text.split(",")]
    is_valid = all(part.isascii() and part.isdecimal() and len(part) < 6 for part in parts)
    return tuple(map(int, parts)) if is_valid else None


def _names(texts: Iterable[str]) -> Iterable[str]:
    """Return unique names in order; a shell variable may hold several in one word."""
    return dict.fromkeys(name for text in texts for name in text.split())
