"""Simulated tokens per second next to published ones: Llama2 on Atlas 800T A2, sequence 4096.

    python benchmarks/published.py

Nothing is tuned to the published figures: the device is `atlas_800t_a2` as it comes, with the shares of its peaks that
its sources document. Target: 7B within 15 %; exit code 1 if it is missed.

Published: MindFormers v1.3.0, docs/model_cards/llama2.md.
"""

import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from mindswap.commands.stepping import LoadedStep, load_step
from mindswap.cost.roofline import OpClass, classify
from mindswap.report.tables import format_table
from mindswap.simulate.program import OpKind

MODELS = Path(__file__).resolve().parent / "models"
# Name, configuration, tokens per second and card, most that the simulated figure may be off.
CASES = (
    ("Llama2-7B", "llama2_7b.yaml", 4160, 0.15),
    ("Llama2-13B", "llama2_13b.yaml", 1691, None),
    ("Llama2-70B", "llama2_70b.yaml", 337, None),
)
# Parts of a step; what a layer computes again is a part of its own.
PARTS = {
    "matrix products": (OpClass.MATMUL,),
    "attention": (OpClass.ATTENTION,),
    "element-wise": (OpClass.ELEMENTWISE, OpClass.NORM, OpClass.SOFTMAX, OpClass.EMBEDDING),
    "casts": (OpClass.CAST,),
    "data movement": (OpClass.MOVE,),
    "collectives": (OpClass.COMMUNICATION,),
}
AGAIN, OPTIMIZER, BUBBLE = "computed again", "optimizer", "bubble, sends"


@dataclass(frozen=True)
class Result:
    """One model.

    Attributes:
        tokens_per_s: simulated, per card.
        published: the same on real cards.
        shares: of the simulated step, by part, on the stage that works longest.
        matrix_fraction: share of the peak that all matrix products reach in the simulation.
        matching_fraction: the share with which the step would take as long as the published one.
    """

    tokens_per_s: float
    published: float
    shares: dict[str, float]
    matrix_fraction: float
    matching_fraction: float

    @property
    def difference(self) -> float:
        """Of the simulated figure from the published one."""
        return self.tokens_per_s / self.published - 1


def main() -> int:
    """Print the tables and what the figures say about the differences."""
    results = {name: measure(load_step(str(MODELS / file)), published) for name, file, published, _ in CASES}
    header = ("simulated, Atlas 800T A2", *results)
    rows = [
        ("tokens/s per card", *(f"{result.tokens_per_s:.0f}" for result in results.values())),
        ("published", *(f"{result.published:.0f}" for result in results.values())),
        ("difference", *(f"{result.difference:+.1%}" for result in results.values())),
        ("share of the simulated step", *("" for _ in results)),
    ]
    for part in (*PARTS, AGAIN, OPTIMIZER, BUBBLE):
        rows.append((f"  {part}", *(f"{result.shares[part]:.1%}" for result in results.values())))
    print(format_table(header, rows))
    print()
    for name, result in results.items():
        print(f"{name}: {explain(result)}")
    missed = [name for name, _, _, most in CASES if most is not None and abs(results[name].difference) > most]
    print("\nTargets missed: " + (", ".join(missed) or "none"))
    return 1 if missed else 0


def explain(result: Result) -> str:
    """The difference in terms of the largest part of the step."""
    what = "less" if result.difference < 0 else "more"
    taken = ", ".join(
        f"{part} {result.shares[part]:.0%}"
        for part in ("matrix products", AGAIN, "collectives")
        if result.shares[part] > 0.05
    )
    return (
        f"{abs(result.difference):.0%} {what} than published. Of the step: {taken}. Matrix products of all sizes are "
        f"taken to reach {result.matrix_fraction:.0%} of the peak; with {result.matching_fraction:.0%} the figures "
        "would be equal."
    )


def measure(loaded: LoadedStep, published: float) -> Result:
    """Simulate one configuration and take its step apart."""
    model, settings = loaded.model, loaded.model.settings
    step = model.simulate(loaded.policy)
    stages = [stage_parts(loaded, stage) for stage in range(model.layout.num_stages)]
    parts, matrix_ns = max(stages, key=lambda stage: sum(stage[0].values()))
    parts[OPTIMIZER] = sum(term.duration_ns for term in step.terms)
    parts[BUBBLE] = step.step_time_ns - sum(parts.values())
    tokens_per_s = settings.num_tokens / settings.num_cards / step.step_time_ns * 1e9
    published_ns = step.step_time_ns * tokens_per_s / published
    fraction = loaded.device.compute_permille / 1000
    return Result(
        tokens_per_s=tokens_per_s,
        published=published,
        shares={part: parts[part] / step.step_time_ns for part in (*PARTS, AGAIN, OPTIMIZER, BUBBLE)},
        matrix_fraction=fraction,
        matching_fraction=fraction * matrix_ns / (matrix_ns + published_ns - step.step_time_ns),
    )


def stage_parts(loaded: LoadedStep, stage: int) -> tuple[Counter[str], int]:
    """Time of each part of a step on one stage in ns, and that of all matrix products, those computed again too."""
    part_of = {kind: part for part, kinds in PARTS.items() for kind in kinds}
    blocks = loaded.model.blocks(loaded.policy)
    parts: Counter[str] = Counter()
    matrix_ns = 0
    for section in (section for chunk in loaded.model.layout.chunks[stage] for section in chunk):
        for op in (*blocks[section].forward, *blocks[section].backward):
            kind = classify(op.op)
            duration_ns = op.duration_ns * loaded.model.settings.num_micro_batches
            parts[AGAIN if op.kind is OpKind.RECOMPUTE else part_of[kind]] += duration_ns
            matrix_ns += duration_ns if kind is OpClass.MATMUL else 0
    return parts, matrix_ns


if __name__ == "__main__":
    sys.exit(main())
