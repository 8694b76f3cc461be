"""Whoever says what a policy does to an operator says what `policy/resolve.py` decides: generated policies and layers.

The decisions themselves are held against the rules of the specification, written down once more in `expected`.
"""

import re
from collections.abc import Iterable
from dataclasses import replace
from types import SimpleNamespace

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mindswap.config.render import document_from_data
from mindswap.graph.analysis.recompute_effect import COMM_ATTRIBUTE, compare_recompute, decisions_by_operator
from mindswap.graph.analysis.saved_tensors import OperatorNames
from mindswap.graph.analysis.swap_effect import IdleReason, compare_effect
from mindswap.graph.model import Graph, Node, Saved, TensorType
from mindswap.graph.passes.swap_recompute import rewrite_graph, settings_of_policy
from mindswap.planner.effect import is_coupled
from mindswap.planner.explain import _names
from mindswap.policy.applied import format_log_lines, recomputed_operators
from mindswap.policy.cell_tree import CellNode, LayerTrees, exact_pattern
from mindswap.policy.coverage import Coverage
from mindswap.policy.formats.mindformers1.read import read_settings
from mindswap.policy.model import ALL_LAYERS, ENTRY_FIELDS, Layers, LayerSwap, OpRecompute, OpSwap, Policy
from mindswap.policy.resolve import Treatment, layer_key, resolve_layer
from mindswap.policy.summary import MemoryAction, summarize_policy
from mindswap.pynative.schedule import find_distances
from mindswap.rules.context import Context
from tests.pynative.builders import chain
from tests.strength import examples

NUM_LAYERS = 3
QUICK = settings(max_examples=examples(15, 40), suppress_health_check=[HealthCheck.too_slow])
SWAPS = ("layer_swap", "op_swap")
BESIDE = (MemoryAction.RECOMPUTE_OUTPUT, MemoryAction.RECOMPUTE_COMM)  # said beside what happens to an operator
ONE = TensorType((256,), "float32", 1024)


@st.composite
def trees(draw, num_types=None):
    """A layer of at most three levels; of `num_types` types, or no two primitives have one, so a graph tells them."""
    count = 0

    def children(depth):
        nonlocal count
        found = []
        for name in draw(st.lists(st.sampled_from("abcd"), unique=True, min_size=1, max_size=3)):
            count += 1
            if depth < 3 and draw(st.booleans()):
                found.append(CellNode(name, f"Cell{count}", children=children(depth + 1)))
            else:
                found.append(CellNode(name, f"Op{count % (num_types or count + 1)}", is_primitive=True))
        return tuple(found)

    return CellNode("", "Layer", children=children(1))


@st.composite
def policies(draw, tree):
    """A policy on layers of this tree."""
    paths = [".".join(path) for path, _ in tree.walk()]
    patterns = st.sampled_from([*map(exact_pattern, paths), ".*", r".*\..*", r"[ab]", r"[ab]\..*", "none"])
    layers = st.one_of(
        st.just(ALL_LAYERS),
        st.sets(st.integers(0, NUM_LAYERS - 1), min_size=1).map(lambda found: Layers(tuple(sorted(found)))),
    )
    entries = st.lists(st.builds(OpRecompute, patterns, layers), max_size=3, unique_by=lambda entry: entry.pattern)
    recomputes = entries.map(tuple)
    no_layers = st.just(Layers(()))
    swaps = draw(st.lists(st.builds(OpSwap, patterns, layers, st.integers(1, 9)), max_size=4))
    return Policy(
        True,
        layer_swap=tuple(draw(st.lists(st.builds(LayerSwap, layers, st.integers(1, 9)), max_size=2))),
        op_swap=tuple(swaps),
        layer_recompute=draw(st.one_of(no_layers, no_layers, layers)),
        select_recompute=draw(recomputes),
        select_comm_recompute=draw(recomputes),
        select_recompute_exclude=draw(recomputes),
        select_comm_recompute_exclude=draw(recomputes),
        output_recompute=draw(st.one_of(no_layers, layers)),
    )


@st.composite
def cases(draw, num_types=None, num_policies=1):
    """A layer and policies on it."""
    tree = draw(trees(num_types))
    return tree, *(draw(policies(tree)) for _ in range(num_policies))


def primitives(tree):
    return [path for path, node in tree.walk() if node.is_primitive]


def names(pattern: str, path: tuple[str, ...], is_exact: bool = False) -> bool:
    """Whether a pattern names an operator, or (not `is_exact`) a cell that it is in."""
    parts = pattern.split(r"\.")
    is_long_enough = len(parts) == len(path) if is_exact else len(parts) <= len(path)
    return is_long_enough and all(re.fullmatch(part, name) for part, name in zip(parts, path, strict=False))


def expected(policy: Policy, index: int, path: tuple[str, ...]):
    """By the specification: recomputed, prefetch distance asked for, communication repeated."""

    def any_names(entries: Iterable[OpRecompute], is_exact: bool = False) -> bool:
        return any(index in entry.layers and names(entry.pattern, path, is_exact) for entry in entries)

    is_full = index in policy.layer_recompute
    is_recomputed = (is_full or any_names(policy.select_recompute)) and not any_names(policy.select_recompute_exclude)
    is_communicated = any_names(policy.select_comm_recompute, True) and not is_full
    is_communicated = is_communicated and not any_names(policy.select_comm_recompute_exclude, True)
    distance = next((entry.prefetch for entry in policy.layer_swap if index in entry.layers), None)
    acted = set()
    for entry in policy.op_swap:
        if index in entry.layers and entry.pattern not in acted:
            acted.add(entry.pattern)
            distance = entry.prefetch if names(entry.pattern, path) else distance
    return is_recomputed, distance, is_communicated


@QUICK
@given(cases())
def test_the_decisions_are_those_of_the_specification(case):
    tree, policy = case
    for index in range(NUM_LAYERS):
        decided = resolve_layer(policy, index, tree)
        for path in primitives(tree):
            found = decided.decision_for(path)
            asked = (found.treatment is Treatment.RECOMPUTE, found.requested_prefetch, bool(found.comm_recomputed_by))
            assert asked == expected(policy, index, path)
            # Each entry that names it either decides or loses.
            deciding = {claim.entry for claim in (*found.decided_by, *found.comm_recomputed_by)}
            assert deciding.isdisjoint(claim.entry for claim in decided.overridden_on(path))


@QUICK
@given(cases())
def test_what_is_logged(case):
    """The log lines say all that is decided: who reads them knows what happens to every operator."""
    tree, policy = case
    for index in range(NUM_LAYERS):
        resolved = resolve_layer(policy, index, tree)
        decided = resolved.primitives()
        again, swapped = dict.fromkeys(decided, False), dict.fromkeys(decided)
        communicated, not_communicated = set(), set()
        for line in format_log_lines(resolved):
            found = re.fullmatch(rf"Set (.+?) at layer {index}(?:: (.*)|, (.*)| and value is: (.*))?", line)
            title, names, beside, value = found.groups()
            told = [entry.split(", value=") for entry in re.split(r", (?!value=)", names or "")]
            below = {
                path: rest for name, *rest in told for path in decided if is_below(path, name.strip(".").split("."))
            }
            if title == "full recompute":
                again = dict.fromkeys(decided, True)
                assert (
                    (beside == "with its output") == resolved.is_output_recomputed == (index in policy.output_recompute)
                )
            elif title == "layer swap":
                swapped = dict.fromkeys(decided, int(value))
            elif title == "op_swap":
                swapped |= {path: int(distance) for path, (distance,) in below.items()}
            elif title.startswith("select recompute"):
                again |= dict.fromkeys(below, title == "select recompute")
            else:
                (communicated if title == "select comm recompute" else not_communicated).update(below)
        assert swapped == {path: found.requested_prefetch for path, found in decided.items()}
        assert again == {path: found.treatment is Treatment.RECOMPUTE for path, found in decided.items()}
        assert communicated == {path for path, found in decided.items() if found.comm_recomputed_by}
        excludes = [entry for entry in policy.select_comm_recompute_exclude if index in entry.layers]
        assert not_communicated == {path for path in decided for entry in excludes if names_exactly(entry, path)}


def is_below(path, cell) -> bool:
    return list(path[: len(cell)]) == list(cell)


def names_exactly(entry: OpRecompute, path: tuple[str, ...]) -> bool:
    return names(entry.pattern, path, is_exact=True)


@QUICK
@given(cases())
def test_layers_with_one_key_are_decided_alike(case):
    """`StepModel` makes one block for them; also for policies that differ in one thing."""
    tree, policy = case
    further = {option: [replace(e, prefetch=e.prefetch + 1) for e in getattr(policy, option)] for option in SWAPS}
    changes = [{}, *({option: entries} for option, entries in further.items())]
    changes += [{option: getattr(policy, option)[1:]} for option in ENTRY_FIELDS]
    changes += [{option: ALL_LAYERS} for option in ("layer_recompute", "output_recompute")]
    by_key = {}
    for changed in (replace(policy, **change) for change in changes):
        for index in range(NUM_LAYERS):
            decided = replace(resolve_layer(changed, index, tree), layer_index=0)
            assert by_key.setdefault(layer_key(changed, index), decided) == decided


@QUICK
@given(cases(num_types=2))
def test_where_operators_cannot_be_told_apart_all_their_decisions_count(case):
    tree, policy = case
    decided = resolve_layer(policy, 0, tree)
    by_place = {}
    for path, node in tree.walk():
        if node.is_primitive:
            by_place.setdefault((".".join(path[:-1]), node.type_name), []).append(decided.decision_for(path))
    assert {place: list(found) for place, found in decisions_by_operator(decided).items()} == by_place


def step(tree: CellNode, index: int) -> Graph:
    """Every primitive of a layer, each read by its own gradient only."""
    forward, backward = [], []
    for number, (path, node) in enumerate((path, node) for path, node in tree.walk() if node.is_primitive):
        cell = ".".join(path[:-1])
        scope = f"Default/{cell or 'layer'}-Cell/{node.type_name}-op{number}"
        forward.append(Node(f"n{number}", node.type_name, index, cell, scope, ("x",), (ONE,), {}))
        grad = Node(f"g{number}", "Grad", index, cell, f"{scope}_grad", (f"n{number}_b",), (), {}, origin=f"n{number}")
        backward.append(grad)
    saved = tuple(Saved(node.name, f"{node.name}_b") for node in forward)
    return Graph(tuple(forward), tuple(backward), saved, True)


@QUICK
@given(cases())
def test_the_predicted_step_and_what_verify_says_of_it(case):
    tree, policy = case
    plain = step(tree, 0)
    by_name = dict(zip((node.name for node in plain.forward), primitives(tree), strict=True))
    operators = OperatorNames([tree], plain)
    decided = resolve_layer(policy, 0, tree)
    found = settings_of_policy(plain, operators, [decided])
    each = {name: decided.decision_for(path) for name, path in by_name.items()}
    # Nothing is read outside its cell, so all that is to be recomputed runs again.
    assert found.recomputed == {name for name, each_ in each.items() if each_.treatment is Treatment.RECOMPUTE}
    assert found.prefetch == {name: d.prefetch for name, d in each.items() if d.prefetch is not None}
    without_swap = replace(found, prefetch={})
    graph, baseline = rewrite_graph(plain, found), rewrite_graph(plain, without_swap)
    (swapped,) = compare_effect([decided], baseline, graph)
    assert (swapped.missing, swapped.unasked, swapped.wrong_prefetch, swapped.one_way) == ((), (), (), ())
    assert len(swapped.pairs) == len(found.prefetch)
    (again,) = compare_recompute([decided], plain, baseline)
    assert (again.missing, again.unasked) == ((), ())
    assert again.idle == () or policy.select_recompute_exclude  # an entry all of whose operators are excluded is idle
    assert len(again.operators) == len(found.recomputed)
    # Backward of a step without the policy runs nothing again: what is asked for is missed, and nothing else.
    (none,) = compare_effect([decided], plain, plain)
    asked = [name for name, each_ in each.items() if each_.treatment is Treatment.OFFLOAD]
    assert [node.name for node in none.missing] == asked


def names_of(nodes) -> set[str]:
    return {node.name for node in nodes}


@QUICK
@given(cases(num_policies=2))
def test_what_verify_says_of_a_step_under_another_policy(case):
    """The graph is of the first policy, asked is what the second says."""
    tree, own, other = case
    plain = step(tree, 0)
    is_, asked = resolve_layer(own, 0, tree), resolve_layer(other, 0, tree)
    by_name = dict(zip((node.name for node in plain.forward), primitives(tree), strict=True))
    before = {name: is_.decision_for(path) for name, path in by_name.items()}
    wanted = {name: asked.decision_for(path) for name, path in by_name.items()}
    marked = [
        replace(node, attributes={COMM_ATTRIBUTE: True}) if before[node.name].comm_recomputed_by else node
        for node in plain.forward
    ]
    plain = replace(plain, forward=tuple(marked))
    found = settings_of_policy(plain, OperatorNames([tree], plain), [is_])
    graph, baseline = rewrite_graph(plain, found), rewrite_graph(plain, replace(found, prefetch={}))
    moved = {name: d.prefetch for name, d in before.items() if d.prefetch is not None}
    again = {name for name, d in before.items() if d.treatment is Treatment.RECOMPUTE}

    (swap,) = compare_effect([asked], baseline, graph)
    assert names_of(p.producer for p in swap.unasked) == {n for n in moved if wanted[n].requested_prefetch is None}
    assert names_of(p.producer for p in swap.wrong_prefetch) == {
        name for name in moved if wanted[name].requested_prefetch not in (None, moved[name])
    }
    stays = wanted.keys() - moved.keys() - again
    assert names_of(swap.missing) == {name for name in stays if wanted[name].prefetch is not None}
    entries = {claim.entry.pattern or claim.entry.setting.value for claim in asked.offloads}
    at_work = {
        claim.entry.pattern or claim.entry.setting.value
        for claim in asked.offloads
        for name in moved
        if is_below(by_name[name], claim.path)
    }
    assert {idle.entry for idle in swap.idle if idle.reason is not IdleReason.NOT_RECOMPUTED} == entries - at_work

    (recompute,) = compare_recompute([asked], plain, baseline)
    wants_again = {name for name, d in wanted.items() if d.treatment is Treatment.RECOMPUTE}
    types = {name: tree_type(tree, path) for name, path in by_name.items()}
    assert {name.split()[-1] for name in recompute.missing} == {types[name] for name in wants_again - again}
    assert {name.split()[-1] for name in recompute.unasked} == {types[name] for name in again - wants_again}
    idle = {
        ".".join(claim.path)
        for claim in asked.recomputes
        if claim.path and not any(is_below(by_name[name], claim.path) for name in again)
    }
    assert set(recompute.idle) - {"the full layer"} == idle
    assert ("the full layer" in recompute.idle) == (asked.is_fully_recomputed and not again)
    for said, wants, has in (
        (recompute.comm_missing, wanted, before), (recompute.comm_unasked, before, wanted),
    ):  # fmt: skip
        names = {n for n, d in wants.items() if d.comm_recomputed_by and not has[n].comm_recomputed_by}
        assert {name.split()[-1] for name in said} == {types[name] for name in names}


def tree_type(tree: CellNode, path: tuple[str, ...]) -> str:
    return next(node.type_name for found, node in tree.walk() if found == path)


def below(name: str, tree: CellNode):
    """Operators of a step of the report."""
    cell = tuple(name.split(".")) if name else ()
    return [path for path, node in tree.walk() if not node.children and path[: len(cell)] == cell]


@QUICK
@given(cases())
def test_what_explain_and_check_show(case):
    tree, policy = case
    model = LayerTrees((tree,) * NUM_LAYERS, {}, "a test")
    shown = {}
    for group in summarize_policy(policy, NUM_LAYERS, model).groups:
        for index in group.layers.indices:
            for entry in group.actions:
                what = entry.action, entry.num_prefetch_ops
                beside = entry.action if entry.action in BESIDE else None
                shown |= {(index, path, beside): what for path in below(entry.name, tree)}
    wanted = {}
    for index in range(NUM_LAYERS):
        for path, found in resolve_layer(policy, index, tree).operators().items():
            if found.treatment is not Treatment.KEEP:
                wanted[index, path, None] = MemoryAction[found.treatment.name], found.prefetch
            if found.comm_recomputed_by:
                wanted[index, path, MemoryAction.RECOMPUTE_COMM] = MemoryAction.RECOMPUTE_COMM, None
            if index in policy.layer_recompute and index in policy.output_recompute:
                wanted[index, path, MemoryAction.RECOMPUTE_OUTPUT] = MemoryAction.RECOMPUTE_OUTPUT, None
    assert shown == wanted


def contest(policy: Policy, index: int, path: tuple[str, ...]) -> set[str]:
    """`X overrides Y` for each entry Y that names an operator in vain, by the order of the specification."""

    def named(option: str) -> list[str]:
        entries = [entry for entry in getattr(policy, option) if index in entry.layers and names(entry.pattern, path)]
        ends = [f" with prefetch {entry.prefetch}" if option == "op_swap" else "" for entry in entries]
        return [f"{option} '{entry.pattern}'{end}" for entry, end in zip(entries, ends, strict=True)]

    swaps = [f"layer_swap with prefetch {entry.prefetch}" for entry in policy.layer_swap if index in entry.layers]
    first = {}
    for said, entry in zip(named("op_swap"), re.findall(r"'(.*?)'", "".join(named("op_swap"))), strict=True):
        first.setdefault(entry, said)
    acting = [*swaps[:1], *first.values()]
    swaps += named("op_swap")
    again = ["recompute"] if index in policy.layer_recompute else named("select_recompute")
    selected, excludes = named("select_recompute"), named("select_recompute_exclude")
    recomputes = [*(["recompute"] if index in policy.layer_recompute else []), *selected]
    if excludes:
        lost = {f"{excludes[0]} overrides {loser}" for loser in recomputes}
        return lost | {f"{acting[-1]} overrides {loser}" for loser in swaps if loser != acting[-1]}
    if again:
        return {f"{again[0]} overrides {loser}" for loser in swaps}
    return {f"{acting[-1]} overrides {loser}" for loser in swaps if loser != acting[-1]}


@QUICK
@given(cases())
def test_the_reasons_that_explain_gives(case):
    tree, policy = case
    model = LayerTrees((tree,) * NUM_LAYERS, {}, "a test")
    for group in summarize_policy(policy, NUM_LAYERS, model, with_overrides=True).groups:
        for index in group.layers.indices:
            told = {}
            for entry in group.actions:
                if entry.action not in BESIDE:
                    told[entry.name] = set(entry.reasons)
            lost = {path: contest(policy, index, path) for path in primitives(tree)}
            assert told == {name: set().union(*(lost[path] for path in below(name, tree))) for name in told}
            shown = {path for name in told for path in below(name, tree)}
            assert {path for path, reasons in lost.items() if reasons} <= shown


@QUICK
@given(cases())
def test_what_convert_and_the_rules_take_for_recomputed(case):
    tree, policy = case
    document = document_from_data(policy.to_config(), "data")
    context = Context(
        document, read_settings(document, NUM_LAYERS), Coverage(LayerTrees((tree,) * NUM_LAYERS, {}, "a test"))
    )
    for index in range(NUM_LAYERS):
        decided = resolve_layer(policy, index, tree).operators()
        again = tuple(".".join(path) for path, found in decided.items() if found.treatment is Treatment.RECOMPUTE)
        comm = {".".join(path) for path, found in decided.items() if found.comm_recomputed_by}
        converted = recomputed_operators(policy, index, tree)
        assert (converted[0], set(converted[1])) == (again, comm)
        assert context.recomputed_operators(index) == set(again)


@QUICK
@given(cases(), st.data())
def test_what_a_planner_judges_and_explains(case, data):
    """A swap whose user is recomputed makes a policy coupled; each primitive is used by one drawn at random."""
    tree, policy = case
    own = [".".join(path) for path in primitives(tree)]
    uses = {name: frozenset({data.draw(st.sampled_from(own))}) for name in own}
    captured = SimpleNamespace(sample=SimpleNamespace(layer_map=(0,) * NUM_LAYERS), trees=(tree,))
    model = SimpleNamespace(captured=captured, holder_names=lambda *_: {"label": tuple((name,) for name in own)})
    num_idle = 0
    for index in range(NUM_LAYERS):
        decided = resolve_layer(policy, index, tree)
        swapped = [name for name in own if decided.decision_for(tuple(name.split("."))).prefetch is not None]
        assert _names(model, policy, "label", index)[0] == swapped
        for name in swapped:
            users = [decided.decision_for(tuple(user.split("."))).treatment for user in uses[name]]
            num_idle += Treatment.RECOMPUTE in users
    assert is_coupled(model, (uses,), policy) == (num_idle > 0)


@QUICK
@given(cases(), st.data())
def test_what_moves_in_pynative_mode(case, data):
    """The storage of each layer is made by the operator at hand; recompute does not count there."""
    tree, policy = case
    path = data.draw(st.sampled_from(primitives(tree)))
    trace = chain(NUM_LAYERS)
    trace = replace(trace, operators=tuple(replace(op, path=path) if op.is_forward else op for op in trace.operators))
    layers = [resolve_layer(policy, index, tree) for index in range(NUM_LAYERS)]
    wanted = {index: found.decision_for(path).requested_prefetch for index, found in enumerate(layers)}
    assert {storage: d.count for storage, d in find_distances(trace, layers).items()} == {
        index: distance for index, distance in wanted.items() if distance is not None
    }
