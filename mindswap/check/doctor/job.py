"""What a configuration needs of the machine, without compiling it."""

from collections.abc import Mapping
from pathlib import Path

from mindswap.check.check import check_document
from mindswap.check.doctor.model import CheckedJob
from mindswap.config.nodes import Document, is_whole_number
from mindswap.config.step import StepSettings, read_step_settings
from mindswap.policy.expand import RULE as STAGE_RULE
from mindswap.policy.mindformers_2x.tables import Form, find_form
from mindswap.policy.model import LayerSwap, OpSwap, Policy, union_layers

DEFAULT_NUM_WORKERS = 8
_CHECKPOINTS = (".ckpt", ".safetensors")


def gather_job(document: Document, environ: Mapping[str, str], num_cards: int) -> CheckedJob:
    """What is known of a training before it runs; a machine without cards is taken to have as many as usual."""
    if find_form(document) is Form.PYNATIVE:
        return CheckedJob(document.file, is_pynative=True)
    checked = check_document(document, environ=environ, ignore={STAGE_RULE, "lazy-inline-env"})
    step = read_step_settings(document)
    stated = document.value("load_checkpoint")
    checkpoint = stated if isinstance(stated, str) else ""
    return CheckedJob(
        document.file,
        num_errors=len(checked.errors),
        swaps=checked.is_swap_enabled,
        disables_lazy_inline=document.value("model", "model_config", "disable_lazy_inline") is True,
        num_local_workers=min(step.num_cards, num_cards or DEFAULT_NUM_WORKERS),
        swapped_bytes=_swapped_bytes(document, step, checked.policy, checked.num_layers),
        loads_whole_checkpoint=bool(checkpoint) and document.value("auto_trans_ckpt") is True,
        checkpoint_bytes=_size_of(Path(checkpoint)) if checkpoint else 0,
    )


def layer_activation_bytes(seq_length: int, batch_size: int, hidden_size: int, model_parallel: int) -> int:
    """Activations of one layer for one micro-batch in half precision: 34 s b h bytes.

    Table 2 of Korthikanti et al., Reducing Activation Recomputation in Large Transformer Models (arXiv:2205.05198),
    without the 5 a s^2 b of attention scores, which flash attention never writes.
    """
    return 34 * seq_length * batch_size * hidden_size // model_parallel


def _swapped_bytes(document: Document, step: StepSettings, policy: Policy | None, num_layers: int | None) -> int:
    """At most: everything of every layer that swap names, for all micro-batches that the first stage holds."""
    hidden = document.value("model", "model_config", "hidden_size")
    if policy is None or not policy.is_swap_enabled or not is_whole_number(hidden) or not num_layers:
        return 0
    swaps: tuple[LayerSwap | OpSwap, ...] = (*policy.layer_swap, *policy.op_swap)
    named = union_layers([entry.layers for entry in swaps]).resolve(num_layers)
    num_stages = step.pipeline.num_stages
    held = min(step.num_micro_batches, num_stages)
    one = layer_activation_bytes(step.seq_length, step.batch_size, hidden, step.model_parallel * step.context_parallel)
    return one * -(-len(named) // num_stages) * held


def _size_of(place: Path) -> int:
    """Of the checkpoint files of one copy: of a folder `rank_0`, ... all ranks together are one."""
    try:
        if place.is_file():
            return place.stat().st_size
        return sum(path.stat().st_size for path in place.rglob("*") if path.suffix in _CHECKPOINTS)
    except OSError:
        return 0
