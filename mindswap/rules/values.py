"""Values of a configuration by key path, for conditions of rules."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from mindswap.config.nodes import Document, DocumentNode, is_int, to_data
from mindswap.config.pipeline_layout import SCHEDULER_PATH
from mindswap.config.problem import Location
from mindswap.config.source import FOLDER_RULE
from mindswap.config.weight_sharding import is_split

MODEL = "model.model_config."
# Common name -> keys of model_config with this meaning in newer and legacy models.
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


class LocatedValue(NamedTuple):
    """A value that a refusal is about."""

    path: str  # key path, as spelled in the file
    node: DocumentNode | None  # None if the key is missing
    location: Location  # location of the value, else of its section or the file


class Values:
    """Values of a configuration by key path, such as `parallel_config.data_parallel`, for conditions.

    `model.x` is short for `model.model_config.x`, where x may be a common name of `SYNONYMS`; `model.arch` is itself.
    """

    def __init__(self, document: Document, is_swap_enabled: bool = False, is_training_start: bool = False):
        self.document = document
        self.is_swap_enabled = is_swap_enabled
        self.is_training_start = is_training_start  # command line options may then override values of the file

    def __call__(self, path: str, default: Any = None) -> Any:
        """Return the value at a path as plain data; `default` where it is missing or null."""
        _, node = self.find(path)
        return default if node is None or node.is_null else to_data(node)

    def is_written(self, path: str) -> bool:
        """Return whether a key is set, even to null."""
        return self.find(path)[1] is not None

    def find(self, path: str) -> tuple[str, DocumentNode | None]:
        """Return the key path as spelled in the file, and its node; None if the key is missing."""
        spelled = _spellings(path)
        for candidate in spelled:
            node = self.document.get(*candidate.split("."))
            if node is not None:
                return candidate, node
        return spelled[0], None

    def locate(self, paths: Sequence[str]) -> LocatedValue:
        """Return the first of some paths that is set; the first path if none is."""
        for path in paths:
            spelled, node = self.find(path)
            if node is not None:
                return LocatedValue(spelled, node, node.location)
        first = _spellings(paths[0])[0]
        section = self.document.entry(first.partition(".")[0])
        return LocatedValue(first, None, section.location if section is not None else Location(self.document.file))

    def count(self, path: str) -> int:
        """Return a positive integer; 1 if the value is missing or invalid."""
        value = self(path)
        return value if is_int(value) and value >= 1 else 1

    @property
    def is_complete(self) -> bool:
        """Return whether this is a complete training configuration, in which missing keys have MindFormers' defaults.

        A fragment is not complete, nor is a file whose model folder cannot be read here.
        """
        has_model = all(problem.rule != FOLDER_RULE for problem in self.document.problems)
        sections = (self.document.get("runner_config"), self.document.get("model", "model_config"))
        return has_model and None not in sections

    @property
    def is_newer(self) -> bool:
        """Return whether the model is of the newer families (`use_legacy: False`)."""
        return not self.document.is_legacy

    @property
    def is_parallel(self) -> bool:
        """Return whether MindFormers passes the section `parallel` to MindSpore."""
        return self.document.is_parallel

    @property
    def is_split(self) -> bool:
        """Return whether the strategies of the model are in effect: semi-auto or auto parallel mode."""
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
        """Name of the pipeline schedule; "" without pipeline_config."""
        value = self(".".join(SCHEDULER_PATH), "")
        return value if isinstance(value, str) else ""

    @property
    def micro_batches(self) -> int:
        """Micro-batches of the pipeline."""
        return self.count("parallel_config.micro_batch_num")

    @property
    def pieces(self) -> int:
        """Pieces per sequence (`seq_split_num`)."""
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
    if not path.startswith("model.") or f"{path}.".startswith((MODEL, "model.arch.")):
        return (path,)
    key = path.removeprefix("model.")
    return tuple(MODEL + spelling for spelling in SYNONYMS.get(key, (key,)))
