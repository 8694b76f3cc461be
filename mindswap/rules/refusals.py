"""Conditions under which MindFormers or MindSpore stop a training, as tables of refusals that rules go through.

`tools/upstream_checks.yaml` lists the checks of both, with the refusal that stands for each.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from mindswap.config.findings import Finding
from mindswap.config.nodes import Document, DocumentNode, is_int, to_data
from mindswap.config.pipeline_layout import SCHEDULER_PATH
from mindswap.config.problem import Location
from mindswap.config.source import FOLDER_RULE
from mindswap.config.weight_sharding import is_split
from mindswap.rules.context import Context
from mindswap.rules.parts import Part, find_part

# Values of `run_mode`, first those in which there is something to swap; MindFormers refuses others.
TRAIN_MODES = ("train", "finetune")
OTHER_MODES = ("eval", "predict", "predict_with_train_model")
RUN_MODES = (*TRAIN_MODES, *OTHER_MODES)
# Values of `parallel.parallel_mode` in a file (mindformers/tools/utils.py, PARALLEL_MODE).
PARALLEL_MODES = (0, 1, 2, 3, "DATA_PARALLEL", "SEMI_AUTO_PARALLEL", "AUTO_PARALLEL", "HYBRID_PARALLEL", "STAND_ALONE",
                  "MANUAL_PARALLEL")  # fmt: skip
# The same by what they do, with MindSpore's names, which MindFormers puts in their place when a run begins.
DATA_MODES = (0, "DATA_PARALLEL", "data_parallel")
MODEL = "model.model_config."
FLASH = "model.use_flash_attention"
# Keys of model_config by which a legacy and a newer model are told the same.
SYNONYMS = {
    "layers": ("num_hidden_layers", "num_layers"),
    "heads": ("num_attention_heads", "num_heads"),
    "kv_heads": ("num_key_value_heads", "n_kv_heads", "multi_query_group_num"),
    "experts": ("n_routed_experts", "num_experts", "num_moe_experts"),
    "chosen_experts": ("num_experts_per_tok", "moe_router_topk"),
    "groups": ("n_group", "moe_router_num_groups"),
    "chosen_groups": ("topk_group", "moe_router_group_topk"),
    "prediction_layers": ("num_nextn_predict_layers", "mtp_num_layers"),
    "chunks": ("pp_interleave_num", "virtual_pipeline_model_parallel_size"),
}


class Values:
    """Values of a configuration by key path, such as `parallel_config.data_parallel`, for conditions.

    `model.x` stands for `model.model_config.x`, where x may be a word of `SYNONYMS`.
    """

    def __init__(self, document: Document, is_swap_enabled: bool = False, is_training_start: bool = False):
        self.document = document
        self.is_swap_enabled = is_swap_enabled
        self.is_training_start = is_training_start  # options of the command line may replace values of the file

    def __call__(self, path: str, default: Any = None) -> Any:
        """Return the value at a path as plain data; `default` where it is missing or null."""
        _, node = self.find(path)
        return default if node is None or node.is_null else to_data(node)

    def is_written(self, path: str) -> bool:
        """Return whether the key is there, whatever its value."""
        return self.find(path)[1] is not None

    def find(self, path: str) -> tuple[str, DocumentNode | None]:
        """Return the key path as it is spelled in the file, and the node there; None where there is no such key."""
        spelled = _spellings(path)
        for candidate in spelled:
            node = self.document.get(*candidate.split("."))
            if node is not None:
                return candidate, node
        return spelled[0], None

    def locate(self, paths: Sequence[str]) -> tuple[str, DocumentNode | None, Location]:
        """Return the first of these paths that is written, its node, and its place."""
        for path in paths:
            spelled, node = self.find(path)
            if node is not None:
                return spelled, node, node.location
        first = _spellings(paths[0])[0]
        section = self.document.entry(first.partition(".")[0])
        return first, None, section.location if section is not None else Location(self.document.file)

    def count(self, path: str) -> int:
        """Return a positive whole number; 1 for what is missing or anything else."""
        value = self(path)
        return value if is_int(value) and value >= 1 else 1

    @property
    def is_complete(self) -> bool:
        """Whether this is the file of a training, where a missing key has MindFormers' default.

        A fragment has none, nor has a file whose model is in a folder that cannot be read here.
        """
        has_model = all(problem.rule != FOLDER_RULE for problem in self.document.problems)
        sections = (self.document.get("runner_config"), self.document.get("model", "model_config"))
        return has_model and None not in sections

    @property
    def is_newer(self) -> bool:
        """Whether the model is of the newer families (`use_legacy: False`)."""
        return not self.document.is_legacy

    @property
    def is_parallel(self) -> bool:
        """Whether MindFormers passes the section `parallel` on to MindSpore."""
        return self.document.is_parallel

    @property
    def is_split(self) -> bool:
        """Whether the strategies of the model are in force: semi-auto or auto parallel mode."""
        return is_split(self.document)

    @property
    def stages(self) -> int:
        """Pipeline stages; 1 without pipeline parallelism."""
        return self.count("parallel_config.pipeline_stage")

    @property
    def chunks(self) -> int:
        """Virtual chunks of each stage."""
        return self.count("model.chunks")

    @property
    def scheduler(self) -> str:
        """Name of the pipeline schedule; "" where there is no pipeline_config."""
        value = self(".".join(SCHEDULER_PATH), "")
        return value if isinstance(value, str) else ""

    @property
    def micro_batches(self) -> int:
        """Micro-batches of the pipeline."""
        return self.count("parallel_config.micro_batch_num")

    @property
    def pieces(self) -> int:
        """Pieces that each sequence is cut into."""
        return self.count("parallel_config.seq_split_num")

    @property
    def tensor(self) -> int:
        """Tensor parallel ranks."""
        return self.count("parallel_config.model_parallel")

    @property
    def data(self) -> int:
        """Data parallel ranks."""
        return self.count("parallel_config.data_parallel")

    @property
    def context(self) -> int:
        """Context parallel ranks."""
        return self.count("parallel_config.context_parallel")

    @property
    def ulysses(self) -> int:
        """Context parallel ranks that share attention heads (`get_ulysses_cp_num` of MindFormers)."""
        algorithm = self("parallel_config.context_parallel_algo", "colossalai_cp")
        degree = {"ulysses_cp": self.context, "hybrid_cp": self.count("parallel_config.ulysses_degree_in_cp")}
        return degree.get(algorithm, 1) if self.context > 1 and isinstance(algorithm, str) else 1


def _spellings(path: str) -> tuple[str, ...]:
    if not path.startswith("model.") or f"{path}.".startswith(MODEL):
        return (path,)
    key = path.removeprefix("model.")
    return tuple(MODEL + spelling for spelling in SYNONYMS.get(key, (key,)))


Condition = Callable[[Values], bool]
Text = str | Callable[[Values], str]


@dataclass(frozen=True)
class Refusal:
    """One condition under which a training stops, and what to say of it."""

    name: str  # id in the list of checks of MindFormers and MindSpore
    at: str | tuple[str, ...]  # key paths: the problem is at the first that is written
    holds: Condition  # whether the training stops; an error of a wrong type counts as no
    message: Text  # what is wrong, without key path and value
    allowed: Text = ""
    fix: Text = ""  # `{key}` stands for the key that the problem is at
    is_always_read: bool = False  # also with `use_parallel: False`, though it is at a key of `parallel`
    parts: Callable[[Values], list[Part]] | None = None  # what is wrong in the list or mapping; None is all of it


def find_refusals(context: Context, refusals: Sequence[Refusal]) -> Iterator[Finding]:
    """Yield a finding for each refusal whose condition holds in a configuration that trains."""
    values = Values(context.document, context.settings.is_swap_enabled, context.is_training_start)
    if values("run_mode") in OTHER_MODES:
        return
    for refusal in refusals:
        path, node, location = values.locate((refusal.at,) if isinstance(refusal.at, str) else refusal.at)
        is_read = refusal.is_always_read or values.is_parallel or path.partition(".")[0] != "parallel"
        if not is_read or not _is_true(refusal.holds, values):
            continue
        message, allowed, fix = (_text(text, values) for text in (refusal.message, refusal.allowed, refusal.fix))
        for part in refusal.parts(values) if refusal.parts is not None and node is not None else [Part(())]:
            part_path, written, place = find_part(part, path, node, location)
            part_fix = (part.fix or fix).replace("{key}", part_path.rpartition(".")[2])
            yield Finding(
                place, f"{part_path}:{written} {message}", part.allowed or allowed, part_fix, context.refusal_level
            )


def _is_true(condition: Callable[[Any], bool], argument: Any) -> bool:
    """Return whether a condition holds; with a value of a wrong type it does not: types are refused by themselves."""
    try:
        return bool(condition(argument))
    except (TypeError, ValueError, KeyError, IndexError, AttributeError, ZeroDivisionError, OverflowError):
        return False


def _text(text: Text, values: Values) -> str:
    return text if isinstance(text, str) else text(values)


def of_parts(
    name: str,
    at: str,
    parts: Callable[[Values], list[Part]],
    message: Text,
    allowed: Text = "",
    fix: Text = "",
) -> Refusal:
    """Return the refusal of parts of a list or mapping: each is a problem at its place."""
    return Refusal(name, at, lambda v: bool(parts(v)), message, allowed, fix, parts=parts)


def of_elements(
    name: str,
    at: str,
    is_wrong: Callable[[Any], bool],
    message: Text,
    allowed: Text = "",
    fix: Text = "",
    key: str = "",
    where: Condition = lambda v: True,
) -> Refusal:
    """Return the refusal of elements of a list.

    Args:
        name: of the refusal.
        at: key path of the list.
        is_wrong: whether the training stops at an element; one of a wrong type counts as right.
        message: of the refusal.
        allowed: what may stand there instead.
        fix: what to do.
        key: of a value in the element where that is wrong.
        where: whether the list is read at all.
    """

    def parts(v: Values) -> list[Part]:
        elements = v(at)
        if not isinstance(elements, list) or not where(v):
            return []
        return [
            Part((index, key) if key else (index,)) for index, item in enumerate(elements) if _is_true(is_wrong, item)
        ]

    return of_parts(name, at, parts, message, allowed, fix)


# Types of single values, as MindFormers and MindSpore check them.


def is_bool(value: object) -> bool:
    """Return whether a value is True or False."""
    return isinstance(value, bool)


def is_positive(value: object) -> bool:
    """Return whether a value is a whole number of 1 or more."""
    return is_int(value) and value >= 1


def is_number(value: object) -> bool:
    """Return whether a value is a number and no bool."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def typed(path: str, is_right: Callable[[Any], bool], allowed: str, fix: str, takes_null: bool = False) -> Refusal:
    """Return the refusal of a value that does not have the type that its place takes.

    Args:
        path: key path of the value.
        is_right: whether a value has the type.
        allowed: the type in words.
        fix: what to write.
        takes_null: whether null counts as missing.
    """

    def holds(v: Values) -> bool:
        _, node = v.find(path)
        return node is not None and not (takes_null and node.is_null) and not is_right(to_data(node))

    return Refusal(f"type of {path}", path, holds, f"it is not {allowed}", allowed, fix)


WITH_DOT = "a number with a dot: 1.e-8; 1e-8 is a string in YAML"


def with_dot(value: Any) -> str:
    """Return the fix for a number without a dot, such as 1e-5: `{key}: 1.0e-5`; "" for what is no number."""
    mantissa, letter, exponent = str(value).lower().partition("e")
    is_number_text = mantissa.lstrip("+-").isdecimal() and (not letter or exponent.lstrip("+-").isdecimal())
    return f"{{key}}: {mantissa}.0{letter}{exponent}" if is_number_text else ""


def of_newer(
    name: str, key: str, holds: Callable[[Any], bool], message: str, allowed: str = "", fix: str = ""
) -> Refusal:
    """Return the refusal of one value of a newer model; `holds` gets the value, where there is one."""
    path = f"model.{key}"
    return Refusal(name, path, lambda v: v.is_newer and v(path) is not None and holds(v(path)), message, allowed, fix)


def lacks_flash_attention(v: Values) -> bool:
    """Return whether flash attention is off; legacy models have it off by default, newer ones on."""
    return not v(FLASH, v.is_newer or not v.is_complete)


def has_latent_attention(v: Values) -> bool:
    """Return whether the model has multi-head latent attention."""
    return bool(v("model.multi_latent_attention")) or v.is_written("model.kv_lora_rank")
