"""Sequence pieces (`seq_split_num`) and interleaved halves (`fine_grain_interleave`), and settings that exclude them.

Each piece has its own forward and backward. Attention reads keys and values of previous pieces from caches, which are
parameters of the layer, and appends its own; backward accumulates gradients of keys and values in two more caches
(mindformers 1.9.0, models/llama/llama_transformer.py, `seq_pipe`).
"""

from collections.abc import Iterator

from mindswap.config.findings import Finding
from mindswap.config.nodes import Document, DocumentNode

SEQUENCE_KEY = "seq_split_num"
PATH = f"parallel_config.{SEQUENCE_KEY}"
# Settings that must be off, with the location of the check in MindFormers 1.9.0.
EXCLUDED = (
    (("model", "model_config", "use_ring_attention"), "models/llama/llama.py"),
    (("model", "model_config", "use_eod_attn_mask_compression"), "models/llama/llama.py"),
    (("runner_wrapper", "calculate_per_token_loss"), "trainer/base_trainer.py"),
    (("recompute_config", "recompute"), "trainer/base_trainer.py"),
)


def find_sequence_problems(document: Document) -> Iterator[Finding]:
    """Yield problems of settings that exclude sequence pieces, context parallelism or interleaved halves.

    `recompute` is excluded with swap on as well, where mindswap disables the check of MindFormers: a recomputed layer
    would read keys and values that later pieces have overwritten.
    """
    yield from _find_piece_problems(document)
    yield from _find_half_problems(document)


def _find_piece_problems(document: Document) -> Iterator[Finding]:
    node = document.get("parallel_config", SEQUENCE_KEY)
    num_pieces = document.count("parallel_config", SEQUENCE_KEY)
    if node is None or num_pieces == 1:
        return
    unsplit = f"{SEQUENCE_KEY}: 1"
    if not document.is_legacy:
        message = (
            f"{PATH}: MindFormers 1.9 does not split sequences of newer models (use_legacy: False; base_trainer.py)"
        )
        yield Finding(node.location, message, "1", unsplit)
        return
    if document.count("parallel_config", "pipeline_stage") == 1:
        yield Finding(
            node.location, f"{PATH}: sequences are split for a pipeline only", "pipeline_stage above 1", unsplit
        )
    length = document.count("model", "model_config", "seq_length")
    if length > 1 and length % num_pieces:
        message = f"{PATH}: {length} tokens of a sequence cannot be split into {num_pieces} equal pieces"
        yield Finding(node.location, message, f"a divisor of {length}", unsplit)
    flash = document.get("model", "model_config", "use_flash_attention")
    if flash is not None and flash.value is False:
        message = f"{PATH}: pieces of sequences take flash attention (models/llama/llama_transformer.py)"
        yield Finding(flash.location, message, "use_flash_attention: True", "use_flash_attention: True")
    for path, source in EXCLUDED:
        excluded = document.get(*path)
        if excluded is not None and _is_on(excluded):
            message = f"{'.'.join(path)}: MindFormers refuses it together with {SEQUENCE_KEY} {num_pieces} ({source})"
            yield Finding(excluded.location, message, f"{path[-1]}: False", f"{path[-1]}: False, or {unsplit}")


HALVES_KEY = "fine_grain_interleave"


def has_interleaved_halves(document: Document) -> bool:
    """Return whether layers alternate between two halves (`check_fine_grain_interleave_valid` in models/utils.py)."""
    model_parallel = document.count("parallel_config", "model_parallel")
    return document.is_legacy and document.count("model", "model_config", HALVES_KEY) > 1 and model_parallel > 1


def _find_half_problems(document: Document) -> Iterator[Finding]:
    key, has_ranks = HALVES_KEY, document.count("parallel_config", "context_parallel") > 1
    halves = document.get("model", "model_config", key)
    if halves is None or document.count("model", "model_config", key) == 1:
        return
    if has_ranks and document.value("model", "model_config", "use_ring_attention") is True:
        message = (
            "model.model_config.use_ring_attention: MindSpore refuses it together with halves of layers (flash_sp.cc)"
        )
        yield Finding(halves.location, message, f"{key}: 1", f"{key}: 1")
    if not has_ranks and document.value("parallel_config", "use_seq_parallel") is not True:
        message = f"model.model_config.{key}: MindFormers requires use_seq_parallel with it (tools/check_rules.py)"
        yield Finding(halves.location, message, f"{key}: 1", f"use_seq_parallel: True, or {key}: 1")


def _is_on(node: DocumentNode) -> bool:
    return bool(node.items) if node.items is not None else node.value is True
