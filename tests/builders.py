"""Small inputs in one line: layer trees from an outline, documents from text, what the rules find."""

from textwrap import dedent

from mindswap.config.nodes import Document
from mindswap.config.parse import parse_document
from mindswap.policy.cell_tree import CellNode, LayerTrees
from mindswap.rules.checker import CheckResult, check_document

# A layer like that of the legacy Llama; `*` marks a primitive. 12 operators.
LLAMA = """
    attention_norm
      norm*
    ffn_norm
      norm*
    attention
      wq
        matmul*
      wo
        matmul*
      flash_attention
        flash_attention*
      merger_head*
    feed_forward
      w1
        matmul*
        activation
          silu*
      w2
        matmul*
      w3
        matmul*
      mul*
    add*
"""
# A layer like that of the newer families. 5 operators.
QWEN = """
    input_layernorm
      norm*
    self_attention
      linear_qkv
        matmul*
      core_attention
        flash_attention*
    mlp
      activation_func
        silu*
      mul*
"""
# Who reads whose output in LLAMA.
LLAMA_USES = {
    "attention.wq.matmul": ("attention.flash_attention.flash_attention",),
    "attention.wo.matmul": ("add",),
    "feed_forward.w1.matmul": ("feed_forward.w1.activation.silu",),
    "feed_forward.w1.activation.silu": ("feed_forward.mul",),
    "feed_forward.mul": ("feed_forward.w2.matmul",),
}


def _children(lines: list[str]) -> tuple[CellNode, ...]:
    nodes = []
    starts = [number for number, line in enumerate(lines) if not line.startswith(" ")]
    for start, end in zip(starts, [*starts[1:], len(lines)], strict=False):
        name = lines[start]
        below = _children([line[2:] for line in lines[start + 1 : end]])
        nodes.append(CellNode(name.rstrip("*"), name.rstrip("*").title(), name.endswith("*"), below))
    return tuple(nodes)


def layer(outline: str) -> CellNode:
    """A layer from an indented outline of its cells and primitives (`name*`)."""
    return CellNode("", "Layer", children=_children([line for line in dedent(outline).splitlines() if line.strip()]))


def trees(num_layers: int = 4, outline: str = LLAMA, uses: dict | None = None) -> LayerTrees:
    """Equal layers."""
    return LayerTrees((layer(outline),) * num_layers, uses or {}, "the test model")


TEST_MODEL = trees()


def document(text: str, file: str = "x.yaml") -> Document:
    """A document from indented text; line 1 is the first line that is not empty."""
    return parse_document(dedent(text).lstrip("\n"), file)


def check(text: str, model: LayerTrees | None = TEST_MODEL, **options) -> CheckResult:
    """Check a text against the test model (four layers of LLAMA)."""
    return check_document(document(text), trees=model, **options)


def found(text: str, model: LayerTrees | None = TEST_MODEL, **options) -> list[tuple[int, int, str]]:
    """Line, column and rule of every problem in a text."""
    problems = check(text, model, **options).problems
    return [(problem.location.line, problem.location.column, problem.rule) for problem in problems]
