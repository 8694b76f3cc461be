"""Megatron-LM's options that decide recomputation, offloading and where a layer is."""

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
    TEXT = "a value"


@dataclass(frozen=True)
class Option:
    """One option of Megatron-LM."""

    kind: OptionKind  # what it takes
    help: str  # for `--help`
    choices: tuple[str, ...]  # of a CHOICE
    field: str = ""  # name of the attribute of `MegatronOptions`


def _option(kind: OptionKind, help: str, *choices: str) -> Any:
    default = False if kind is OptionKind.FLAG else None
    return field(default=default, metadata={"option": Option(kind, help, choices)})


@dataclass(frozen=True)
class MegatronOptions:
    """The options that decide; None and False where one is not given."""

    recompute_activations: bool = _option(OptionKind.FLAG, "same as --recompute-granularity selective")
    recompute_granularity: str | None = _option(OptionKind.CHOICE, "full layers, or parts of them", "full", "selective")
    recompute_method: str | None = _option(
        OptionKind.CHOICE, "groups of layers, or the first of each stage", "uniform", "block"
    )
    recompute_num_layers: int | None = _option(
        OptionKind.NUMBER, "layers per group (uniform), or per stage or chunk (block)"
    )
    recompute_modules: tuple[str, ...] | None = _option(
        OptionKind.NAMES, "what selective recomputes; default core_attn"
    )
    distribute_saved_activations: bool = _option(OptionKind.FLAG, "cut what is kept over the tensor parallel ranks")
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
    pipeline_model_parallel_layout: str | None = _option(OptionKind.TEXT, "not supported")
    places: tuple[tuple[str, Location], ...] = ()  # where each given option stands, by field name

    def location_of(self, field: str) -> Location:
        """Place of an option; of the first option at all where it is not given."""
        places = dict(self.places)
        return places.get(field) or next(iter(places.values()), Location("command line"))

    def override(self, other: "MegatronOptions") -> "MegatronOptions":
        """These options, with those that `other` gives in their place."""
        given = {name: getattr(other, name) for name, _ in other.places}
        kept = tuple((name, place) for name, place in self.places if name not in given)
        return replace(self, **given, places=kept + other.places)

    @property
    def num_recomputed(self) -> int:
        """--recompute-num-layers; 1 where it is not given, Megatron's default."""
        return self.recompute_num_layers or 1

    @property
    def granularity(self) -> str | None:
        """`full`, `selective` or None; --recompute-activations decides where it is given."""
        return "selective" if self.recompute_activations else self.recompute_granularity


def option_name(field: str) -> str:
    """An option as on the command line, e.g. `--recompute-method`."""
    return "--" + field.replace("_", "-")


# By their names on the command line.
OPTIONS: dict[str, Option] = {
    option_name(option_field.name): replace(option_field.metadata["option"], field=option_field.name)
    for option_field in fields(MegatronOptions)
    if "option" in option_field.metadata
}


# Options that were pasted into a YAML file, where they are keys.


def is_option_key(key: object) -> bool:
    """Return whether a key of a YAML file is an option of Megatron-LM: `recompute_method`, or with dashes."""
    return isinstance(key, str) and option_name(key) in OPTIONS


def find_pasted_options(entries: Iterable[MappingEntry], section: str, file: str) -> Finding | None:
    """Finding about the keys of a section that are options of Megatron-LM; None without one.

    Args:
        entries: of the section.
        section: its key path; "" for the top level.
        file: the configuration, for the command that converts it.
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
    """An option and its values as on the command line; nothing for a flag that is off."""
    if isinstance(node.value, bool) or node.is_null:
        return [name] if node.value else []
    values = [item.value for item in node.items] if node.items is not None else [node.value]
    return [name, *map(str, values)]


def read_tokens(tokens: Sequence[str]) -> dict[str, list[str]]:
    """The options among the words of a command, each with its values; others are passed over.

    As with argparse, the last one counts where an option stands twice.
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
    given: Mapping[str, Sequence[str]], places: Mapping[str, Location]
) -> tuple[MegatronOptions, tuple[Problem, ...]]:
    """Options from their values as text, by the names of the options, and where each stands.

    Gives those that could be read, and why the others could not.
    """
    values: dict[str, object] = {}
    problems = []
    for name, texts in given.items():
        option = OPTIONS[name]
        value, allowed = _read_value(option, texts)
        if value is None:
            shown = " ".join(texts) or "(nothing)"
            fix = f"give {name} on the command line of mindswap convert" if "$" in shown or "`" in shown else ""
            reason = "not known without running the script" if fix else f"not {allowed}"
            message = f"{name}: {shown} is {reason}" if texts else f"{name}: has no value"
            problems.append(
                Problem(
                    location=places[name],
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
    located = tuple((OPTIONS[name].field, places[name]) for name in given if OPTIONS[name].field in values)
    return MegatronOptions(**values, places=located), tuple(problems)  # type: ignore[arg-type]


def _read_value(option: Option, texts: Sequence[str]) -> tuple[object, str]:
    """The value, None if the text does not fit, and what would be allowed."""
    text = " ".join(texts)
    if option.kind is OptionKind.FLAG:
        return True, ""
    if option.kind is OptionKind.NUMBER:
        is_number = text.isascii() and text.isdecimal() and int(text[:9]) >= 1 and len(text) < 6
        return int(text) if is_number else None, option.kind.value
    if option.kind is OptionKind.CHOICE:
        return (text if text in option.choices else None), " or ".join(option.choices)
    is_resolved = bool(texts) and not any(mark in text for mark in "$`")
    if option.kind is OptionKind.NAMES:
        return (tuple(_names(texts)) if is_resolved else None), option.kind.value
    return (text if is_resolved else None), option.kind.value


def _names(texts: Iterable[str]) -> Iterable[str]:
    """Names in order, each once; a shell may have them joined in one word."""
    return dict.fromkeys(name for text in texts for name in text.split())
