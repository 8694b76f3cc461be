"""What is found by layers is what trying all pairs finds."""

import random

import pytest

from mindswap.policy.cell_tree import LayerTrees
from mindswap.policy.coverage import Coverage
from mindswap.policy.formats.mindformers1.read import read_settings
from mindswap.rules.context import Context, shared_layers
from mindswap.rules.mindformers1 import find_rules
from mindswap.rules.mindformers1.swaps import overlap_finding
from tests.builders import LLAMA, QWEN, document, layer, trees
from tests.strength import examples

PATTERNS = [
    "attention", r"attention\\.wq", r"attention\\.w.*", "att.*", ".*", r".*\\..*", "add", r"feed_forward\\.mul",
    r"feed_forward\\.w1", r"feed_forward\\.w1\\.activation", r"mlp\\.mul", r"self_attention\\..*", "nothing", "(",
]  # fmt: skip
# Two layers of one kind, three of another, so that a pattern may name something in some layers only.
MIXED = LayerTrees((layer(LLAMA),) * 2 + (layer(QWEN),) * 3, {}, "the test model")


def random_text(chance: random.Random) -> str:
    """One to a dozen entries of each option, with layers in and beyond a model of five."""

    def layers() -> str:
        if chance.random() < 0.2:
            return "True"
        return str([chance.randrange(7) for _ in range(chance.randrange(4))])

    def op_swap() -> str:
        name, distance = chance.choice(PATTERNS), chance.choice([1, 2, 3])
        return f'{{op_name: "{name}", backward_prefetch: {distance}, layers: {layers()}}}'

    def layer_swap() -> str:
        return f"{{backward_prefetch: {chance.choice([1, 2])}, layers: {layers()}}}"

    def choice() -> str:
        names = chance.sample(PATTERNS, chance.randrange(5))
        return "{" + ", ".join(f'"{name}": {layers()}' for name in names) + "}"

    op_swaps = ", ".join(op_swap() for _ in range(chance.randrange(12)))
    layer_swaps = ", ".join(layer_swap() for _ in range(chance.randrange(5)))
    return (
        f"swap_config: {{swap: True, layer_swap: [{layer_swaps}], op_swap: [{op_swaps}]}}\n"
        f"recompute_config: {{recompute: {layers()}, select_recompute: {choice()}, "
        f"select_recompute_exclude: {choice()}}}\n"
    )


def pairwise_overlap(context):
    """What rule `overlap` was before: every pair is tried."""
    op_swap = [statement for statement in context.settings.of("op_swap") if not statement.is_default]
    pairs = [(weaker, stronger) for weaker in context.settings.of("layer_swap") for stronger in op_swap]
    first_place = {}
    for statement in op_swap:
        first_place.setdefault(statement.pattern, len(first_place))
    ordered = sorted(op_swap, key=lambda statement: first_place[statement.pattern])
    for index, stronger in enumerate(ordered):
        pairs += [(weaker, stronger) for weaker in ordered[:index] if weaker.pattern != stronger.pattern]
    meetings = [(weaker, stronger, context.overlap(weaker, stronger)) for weaker, stronger in pairs]
    return [overlap_finding(*found) for found in meetings if found[2] is not None]


def pairwise_places(statements, group_of, contradicts):
    """Where an entry repeats or contradicts an earlier one of its group, with that one."""
    groups, found = {}, []
    for statement in statements:
        group = groups.setdefault(group_of(statement), [])
        for earlier in group:
            layers = shared_layers(earlier.layers, statement.layers)
            if layers and contradicts(earlier, statement):
                found.append((statement.path, earlier.path))
                break
        group.append(statement)
    return found


def all_pairs(context, lefts, rights):
    """What `Context.meetings` was before."""
    tried = [(left, right, context.overlap(left, right)) for left in lefts for right in rights]
    return [found for found in tried if found[2] is not None]


def paths(problems):
    """The entry that a problem is of, and the earlier one that it names."""
    words = [[word.strip(",:") for word in problem.message.split() if "swap_config" in word] for problem in problems]
    return [(first.removesuffix(".backward_prefetch"), second) for first, second in words]


@pytest.mark.parametrize("model", [None, MIXED], ids=["unknown model", "two kinds of layers"])
def test_the_same_as_all_pairs(model):
    rules = find_rules()
    num_found = dict.fromkeys(("overlap", "conflicting", "repeated", "meetings"), 0)
    for seed in range(examples(50, 5000)):
        source = document(random_text(random.Random(seed)))
        context = Context(source, read_settings(source, 5), Coverage(model) if model else None)
        settings = context.settings
        expected = pairwise_overlap(context)
        assert list(rules["overlap"].find(context)) == expected
        num_found["overlap"] += len(expected)

        recompute = (*settings.of("recompute"), *settings.of("select_recompute"))
        for lefts, rights in (
            (settings.swap, recompute),
            (recompute, settings.of("select_recompute_exclude")),
            (settings.statements, settings.statements),
        ):
            expected = all_pairs(context, lefts, rights)
            assert list(context.overlaps(lefts, rights)) == expected
            num_found["meetings"] += len(expected)

        swap = [s for s in settings.swap if s.num_prefetch_ops is not None and s.prefetch_location is not None]
        expected = pairwise_places(
            swap, lambda s: (s.option, s.pattern), lambda a, b: a.num_prefetch_ops != b.num_prefetch_ops
        )
        assert paths(rules["conflicting-prefetch"].check(context)) == expected
        num_found["conflicting"] += len(expected)

        expected = pairwise_places(
            settings.swap, lambda s: (s.option, s.pattern, s.num_prefetch_ops), lambda a, b: True
        )
        problems = [p for p in rules["repeated-layer"].check(context) if " says the same for " in p.message]
        assert paths(p for p in problems if p.message.startswith("swap_config")) == expected
        num_found["repeated"] += len(expected)
    assert all(num > 20 for num in num_found.values())


def test_entries_that_share_no_layer_are_not_compared(monkeypatch):
    """400 entries, so 79,800 pairs; none of them is looked at."""
    looked_at = []
    monkeypatch.setattr(Context, "overlap", lambda self, left, right: looked_at.append(left))
    entries = [f"    - {{op_name: attention, backward_prefetch: {n % 7 + 1}, layers: [{n}]}}\n" for n in range(400)]
    source = document("swap_config:\n  swap: True\n  op_swap:\n" + "".join(entries))
    context = Context(source, read_settings(source, 400), Coverage(trees(400)))
    assert list(find_rules()["overlap"].check(context)) == []
    assert list(context.overlaps(context.settings.swap[:200], context.settings.swap[200:])) == []
    assert looked_at == []
