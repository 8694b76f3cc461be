"""Sequences that a pipeline cuts into pieces (`seq_split_num`), and where MindFormers does not take that.

Each piece goes through forward and backward by itself. Attention of a piece reads the keys and values of the pieces
before it from caches, parameters of its layer, and adds its own to them; backward adds up gradients of keys and values
in two more (mindformers 1.9.0, models/llama/llama_transformer.py, `seq_pipe`).
"""

from collections.abc import Iterator

from mindswap.config.nodes import Document, DocumentNode
from mindswap.config.rules import Finding

SEQUENCE_KEY = "seq_split_num"
PATH = f"parallel_config.{SEQUENCE_KEY}"
# What must not be on besides, with the place where MindFormers 1.9.0 says so.
EXCLUDED = (
    (("model", "model_config", "use_ring_attention"), "models/llama/llama.py"),
    (("model", "model_config", "use_eod_attn_mask_compression"), "models/llama/llama.py"),
    (("runner_wrapper", "calculate_per_token_loss"), "trainer/base_trainer.py"),
    (("recompute_config", "recompute"), "trainer/base_trainer.py"),
)


def find_sequence_faults(document: Document) -> Iterator[Finding]:
    """Why a configuration with sequences in pieces, or with `use_ring_attention` over several ranks, does not train.

    `recompute` counts with swap on, too: a layer that runs again would read keys and values that later pieces have
    changed. mindswap turns the check of MindFormers off there.
    """
    yield from _faults_of_pieces(document)
    yield from _faults_of_rings(document)


def _faults_of_pieces(document: Document) -> Iterator[Finding]:
    node = document.get("parallel_config", SEQUENCE_KEY)
    num_pieces = document.count("parallel_config", SEQUENCE_KEY)
    if node is None or num_pieces == 1:
        return
    whole = f"{SEQUENCE_KEY}: 1"
    if not document.is_legacy:
        message = f"{PATH}: MindFormers 1.9 cuts no sequences of newer models (use_legacy: False; base_trainer.py)"
        yield Finding(node.location, message, "1", whole)
        return
    if document.count("parallel_config", "pipeline_stage") == 1:
        yield Finding(node.location, f"{PATH}: sequences are cut for a pipeline only", "pipeline_stage above 1", whole)
    length = document.count("model", "model_config", "seq_length")
    if length > 1 and length % num_pieces:
        message = f"{PATH}: {length} tokens of a sequence are no {num_pieces} equal pieces"
        yield Finding(node.location, message, f"a divisor of {length}", whole)
    flash = document.get("model", "model_config", "use_flash_attention")
    if flash is not None and flash.value is False:
        message = f"{PATH}: pieces of sequences take flash attention (models/llama/llama_transformer.py)"
        yield Finding(flash.location, message, "use_flash_attention: True", "use_flash_attention: True")
    for path, source in EXCLUDED:
        excluded = document.get(*path)
        if excluded is not None and _is_on(excluded):
            message = f"{'.'.join(path)}: MindFormers refuses it beside {SEQUENCE_KEY} {num_pieces} ({source})"
            yield Finding(excluded.location, message, f"{path[-1]}: False", f"{path[-1]}: False, or {whole}")


def _faults_of_rings(document: Document) -> Iterator[Finding]:
    halves = document.get("model", "model_config", "fine_grain_interleave")
    is_ring = document.value("model", "model_config", "use_ring_attention") is True
    if not is_ring or halves is None or document.count("parallel_config", "context_parallel") == 1:
        return
    if document.count("model", "model_config", "fine_grain_interleave") > 1:
        message = "model.model_config.use_ring_attention: MindSpore refuses it beside halves of layers (flash_sp.cc)"
        yield Finding(halves.location, message, "fine_grain_interleave: 1", "fine_grain_interleave: 1")


def _is_on(node: DocumentNode) -> bool:
    return bool(node.items) if node.items is not None else node.value is True
