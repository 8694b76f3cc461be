"""Absolute TFLOPS of full recompute next to those that MindSpeed publishes for cuts of GPT-175B.

Run by `python benchmarks/published.py --mindspeed`.
"""

from pathlib import Path

from mindswap.features.step import Step, load_step
from mindswap.policy.coverage import baseline_policy
from mindswap.policy.model import Layers, Policy
from mindswap.report.tables import format_table

__all__ = ["compare_mindspeed"]

FOLDER = Path(__file__).resolve().parent
# Settings in benchmarks/models -> TFLOPS per card that MindSpeed publishes for full recompute.
MINDSPEED = {"gpt_175b_tp8_3l": 145.93, "gpt_175b_tp2_pp4": 66.50, "gpt_175b_tp2_pp4_vpp2": 75.10}
CARDS = ("atlas_800t_a2_280t", "atlas_800t_a2", "atlas_800t_a2_376t")
MINDSPEED_ASSUMPTIONS = (
    "'all': every layer is computed again. The page says recompute-num-layers 1 of the last two, which with Megatron's",
    "  method 'block' is one layer in each stage or chunk, with 'uniform' all: 'one' is the former.",
    "The card is not said: 280, 313 and 376 TFLOPS are shown.",
    "TFLOPS are those of the model without recompute, with the pairs of positions under the causal mask; Megatron",
    "  counts all pairs, which gives 'full pairs'.",
    "No sequence parallel; AdamW; bfloat16 with float32 weights; GPT-2's vocabulary (benchmarks/models).",
)


def compare_mindspeed() -> int:
    """Print absolute TFLOPS of full recompute next to MindSpeed's, for each card and each reading of the page; 0."""
    rows = []
    for file, published in MINDSPEED.items():
        for card in CARDS:
            loaded = load_step(str(FOLDER / "models" / f"{file}.yaml"), card)
            everything = baseline_policy("full-recompute", loaded.model.captured.trees)
            one = Policy(is_swap_enabled=True, layer_recompute=first_layers(loaded))
            cells = [f"{tflops(loaded, policy):.1f}" for policy in (everything, one)]
            full = f"{tflops(loaded, everything) * full_pairs(loaded):.1f}"
            rows.append((file, f"{published:.1f}", loaded.device.title.rpartition("(")[2].rstrip(")"), *cells, full))
    print(format_table(("TFLOPS per card", "published", "card", "all", "one", "all, full pairs"), rows))
    print("\nAssumed:\n" + "\n".join(text if text.startswith(" ") else f"- {text}" for text in MINDSPEED_ASSUMPTIONS))
    return 0


def first_layers(loaded: Step) -> Layers:
    """One layer of each pipeline chunk. Section i + 1 of the step is layer i."""
    num_layers = loaded.model.captured.num_layers
    chunks = [chunk for stage in loaded.model.layout.chunks for chunk in stage]
    return Layers(min(section for section in chunk if 0 < section <= num_layers) - 1 for chunk in chunks)


def tflops(loaded: Step, policy: Policy) -> float:
    """Of one card, without what is computed again."""
    step = loaded.model.simulate(policy)
    return loaded.model.model_flops() / loaded.model.settings.num_cards / step.step_time_ns / 1000


def full_pairs(loaded: Step) -> float:
    """FLOPs with every pair of positions in attention over those with the causal ones."""
    hidden = loaded.document.count("model", "model_config", "hidden_size")
    settings, num_layers = loaded.model.settings, loaded.model.captured.num_layers
    # Two products forward, five back, of 2 FLOPs for each pair; those under the causal mask are counted already.
    missing = 7 * 2 * settings.num_tokens * hidden * num_layers * (settings.seq_length - 1) // 2
    total = loaded.model.model_flops()
    return (total + missing) / total
