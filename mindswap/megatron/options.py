"""Megatron-LM's options that decide recomputation, offloading and where a layer is."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from enum import Enum

from mindswap.document.problem import Level, Location, Problem

__all__ = ["OPTIONS", "Kind", "MegatronOptions", "Option", "read_options", "read_tokens"]

RULE = "megatron-options"


class Kind(Enum):
    """What an option takes."""

    FLAG = "nothing"
    NUMBER = "a number from 1"
    CHOICE = "one of"
    NAMES = "names of modules"
    TEXT = "a value"


@dataclass(frozen=True)
class Option:
    """One option of Megatron-LM.

    Attributes:
        name: as on the command line, e.g. `--recompute-method`.
        kind: what it takes.
        help: for `--help`.
        choices: of a CHOICE.
    """

    name: str
    kind: Kind
    help: str
    choices: tuple[str, ...] = ()

    @property
    def field(self) -> str:
        """Name of the attribute of `MegatronOptions`."""
        return self.name.removeprefix("--").replace("-", "_")


OPTIONS = {
    option.name: option
    for option in (
        Option("--recompute-activations", Kind.FLAG, "same as --recompute-granularity selective"),
        Option("--recompute-granularity", Kind.CHOICE, "full layers, or parts of them", ("full", "selective")),
        Option("--recompute-method", Kind.CHOICE, "groups of layers, or the first of each stage", ("uniform", "block")),
        Option("--recompute-num-layers", Kind.NUMBER, "layers per group (uniform), or per stage or chunk (block)"),
        Option("--recompute-modules", Kind.NAMES, "what selective recomputes; default core_attn"),
        Option("--distribute-saved-activations", Kind.FLAG, "cut what is kept over the tensor parallel ranks"),
        Option("--fine-grained-activation-offloading", Kind.FLAG, "offload the inputs of --offload-modules"),
        Option("--offload-modules", Kind.NAMES, "modules whose inputs are offloaded"),
        Option("--num-layers", Kind.NUMBER, "layers of the model"),
        Option("--tensor-model-parallel-size", Kind.NUMBER, "tensor parallel ranks"),
        Option("--sequence-parallel", Kind.FLAG, "sequence parallel"),
        Option("--pipeline-model-parallel-size", Kind.NUMBER, "pipeline stages"),
        Option("--num-layers-per-virtual-pipeline-stage", Kind.NUMBER, "layers per virtual chunk"),
        Option("--num-virtual-stages-per-pipeline-rank", Kind.NUMBER, "virtual chunks per stage"),
        Option("--decoder-first-pipeline-num-layers", Kind.NUMBER, "layers of the first stage"),
        Option("--decoder-last-pipeline-num-layers", Kind.NUMBER, "layers of the last stage"),
        Option("--account-for-embedding-in-pipeline-split", Kind.FLAG, "the embedding counts as a layer"),
        Option("--account-for-loss-in-pipeline-split", Kind.FLAG, "the loss counts as a layer"),
        Option("--pipeline-model-parallel-layout", Kind.TEXT, "not supported"),
    )
}


@dataclass(frozen=True)
class MegatronOptions:
    """Values of `OPTIONS`; None and False where an option is not given.

    Attributes:
        places: where each given option stands, by field name.
    """

    recompute_activations: bool = False
    recompute_granularity: str | None = None
    recompute_method: str | None = None
    recompute_num_layers: int | None = None
    recompute_modules: tuple[str, ...] | None = None
    distribute_saved_activations: bool = False
    fine_grained_activation_offloading: bool = False
    offload_modules: tuple[str, ...] | None = None
    num_layers: int | None = None
    tensor_model_parallel_size: int | None = None
    sequence_parallel: bool = False
    pipeline_model_parallel_size: int | None = None
    num_layers_per_virtual_pipeline_stage: int | None = None
    num_virtual_stages_per_pipeline_rank: int | None = None
    decoder_first_pipeline_num_layers: int | None = None
    decoder_last_pipeline_num_layers: int | None = None
    account_for_embedding_in_pipeline_split: bool = False
    account_for_loss_in_pipeline_split: bool = False
    pipeline_model_parallel_layout: str | None = None
    places: tuple[tuple[str, Location], ...] = ()

    def place(self, field: str) -> Location:
        """Where an option stands; the first option at all where it is not given."""
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

    def values(self) -> dict[str, object]:
        """Every value, without the places."""
        return {field.name: getattr(self, field.name) for field in fields(self) if field.name != "places"}


def read_tokens(tokens: Sequence[str]) -> dict[str, list[str]]:
    """The options among the words of a command, each with its values; others are passed over.

    As with argparse, the last one counts where an option stands twice.
    """
    found: dict[str, list[str]] = {}
    name = None
    for token in tokens:
        if token.startswith("--"):
            name, equals, value = token.partition("=")
            if name in OPTIONS:
                found[name] = [value] if equals else []
        elif name in OPTIONS:
            option = OPTIONS[name]
            if option.kind is Kind.NAMES or (option.kind is not Kind.FLAG and not found[name]):
                found[name].append(token)
    return found


def read_options(
    given: Mapping[str, Sequence[str]], places: Mapping[str, Location]
) -> tuple[MegatronOptions, tuple[Problem, ...]]:
    """Options from their values as text.

    Args:
        given: name of an option -> its values.
        places: where each stands.

    Returns:
        The options that could be read, and why the others could not.
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
            problems.append(Problem(places[name], RULE, Level.ERROR, message, allowed, fix, name))
        else:
            values[option.field] = value
    located = tuple((OPTIONS[name].field, places[name]) for name in given if OPTIONS[name].field in values)
    return MegatronOptions(**values, places=located), tuple(problems)  # type: ignore[arg-type]


def _read_value(option: Option, texts: Sequence[str]) -> tuple[object, str]:
    """The value, None if the text does not fit, and what would be allowed."""
    text = " ".join(texts)
    if option.kind is Kind.FLAG:
        return True, ""
    if option.kind is Kind.NUMBER:
        is_number = text.isascii() and text.isdecimal() and int(text[:9]) >= 1 and len(text) < 6
        return int(text) if is_number else None, option.kind.value
    if option.kind is Kind.CHOICE:
        return (text if text in option.choices else None), " or ".join(option.choices)
    is_known = bool(texts) and not any(mark in text for mark in "$`")
    if option.kind is Kind.NAMES:
        return (tuple(_names(texts)) if is_known else None), option.kind.value
    return (text if is_known else None), option.kind.value


def _names(texts: Iterable[str]) -> Iterable[str]:
    """Names in order, each once; a shell may have them joined in one word."""
    return dict.fromkeys(name for text in texts for name in text.split())
