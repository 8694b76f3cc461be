"""No assignment of made-up problems and no policy of real models is faster than the lower bound of its memory."""

import random
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from reference.exact import count_choices, enumerate_all

from mindswap.graph.analysis.collectives import Collective
from mindswap.planner.catalog import Catalog, build_catalog
from mindswap.planner.evaluate import evaluate
from mindswap.planner.layer_assignments import LayerAssignments
from mindswap.planner.lower_bound import BoundInputs, collect_bound_inputs, least_budget_bytes, min_step_ns
from mindswap.planner.lower_bound.inputs import Stage, StageLayers
from mindswap.planner.lower_bound.liveness_points import (
    Liveness,
    compute_liveness,
)
from mindswap.planner.lower_bound.tensor_graph import (
    TensorGraph,
)
from mindswap.planner.problem import DEFAULT_ALLOW, Allow
from mindswap.policy.cell_tree import exact_pattern
from mindswap.policy.model import Layers, OpRecompute, OpSwap, Policy
from mindswap.simulator.memory import interval_times
from mindswap.simulator.program import OpKind
from mindswap.simulator.step_model import StepModel
from mindswap.simulator.timeline import Timeline
from tests.graph.builders import node
from tests.planner.builders import ToySpace, random_space
from tests.planner.loading import capture_apart, capture_experts
from tests.planner.lower_bound.builders import PLENTY, changed, changed_view, problem
from tests.planner.models import MB, small_model
from tests.planner.test_budget_search import with_links
from tests.strength import examples

CONFIG = Path(__file__).resolve().parents[3] / "configs" / "llama2_7b" / "cpu" / "case3_op_swap.yaml"
DISTANCES = (1, 2, 4)


def toy_facts(case: ToySpace) -> BoundInputs:
    """All tensors of a toy model are there when forward has ended."""
    tensor_graphs = [
        TensorGraph(
            sizes_bytes=tuple(tensor.size_bytes for tensor in tensors),
            producers=tuple(range(len(tensors))),
            saved=frozenset(range(len(tensors))),
            outputs=frozenset(i for i, tensor in enumerate(tensors) if not tensor.can_recompute),
            reads=tuple((i, i - 1) for i in range(1, len(tensors))),
            recompute_ns=tuple(tensor.forward_ns for tensor in tensors),
            communication_ns=(0,) * len(tensors),
        )
        for tensors in case.tensors
    ]
    forward_ns = sum(tensor.forward_ns for tensors in case.tensors for tensor in tensors) + 2
    backward_ns = sum(tensor.backward_ns for tensors in case.tensors for tensor in tensors) + 2
    saved_bytes = sum(tensor_graph.saved_bytes for tensor_graph in tensor_graphs)
    layers = {StageLayers(kind): 1 for kind in range(len(tensor_graphs))}
    stage = Stage(saved_bytes, layers, window_ns=forward_ns, work_ns=forward_ns + backward_ns)
    return BoundInputs(tuple(tensor_graphs), (stage,), case.transfers)


@pytest.mark.long
def test_no_choice_beats_the_bound():
    """All choices of small random problems; often enough the bound is more than the step that keeps everything."""
    num_binding = 0
    for seed in range(examples(150, 1200)):
        case = random_space(seed)
        if count_choices(case.costs, DISTANCES) > examples(120, 300):
            continue
        exact = enumerate_all(case, distances=DISTANCES).best_score
        known = toy_facts(case)
        least_ns = min_step_ns(known, case.budget_bytes, PLENTY, DEFAULT_ALLOW)
        if least_ns is None:
            assert not exact.fits, seed
        elif exact.fits:
            assert least_ns <= exact.step_time_ns, seed
            num_binding += least_ns > known.stages[0].work_ns
    assert num_binding >= examples(1, 10)


@pytest.fixture(scope="module")
def model():
    """On one card: gradients that other ranks get stay twice until the optimizer, and one of single operators makes
    their products. In so small a model that is the peak, which no policy moves.
    """
    captured = capture_apart(CONFIG)
    return captured.with_settings(replace(captured.settings, data_parallel=1, optimizer="FusedAdamW"))


@pytest.mark.mindspore
def test_no_policy_of_experts_beats_the_bound(tmp_path):
    model = capture_experts(tmp_path)
    keep = evaluate(problem(model, PLENTY), Policy())
    known, catalog = collect_bound_inputs(model, keep.step), build_catalog(model.with_swap())
    assert any(tensor_graph.recomputed_cells for tensor_graph in known.tensor_graphs)
    rows, chance, num_binding = LayerAssignments(model.with_swap(), catalog), random.Random(0), 0
    for _ in range(examples(40, 200)):
        policy = rows.policy(random_choice(catalog, chance))
        evaluation = evaluate(problem(model, PLENTY), policy)
        least_ns = min_step_ns(known, evaluation.peak_bytes, PLENTY, DEFAULT_ALLOW)
        assert least_ns is not None and least_ns <= evaluation.step_time_ns, policy
        num_binding += least_ns > keep.step_time_ns
    assert num_binding >= examples(5, 10)


@pytest.mark.mindspore
def test_no_policy_of_a_real_model_beats_the_bound(model):
    """Random policies, each at the budget of its own peak; distances from too short to far."""
    keep = evaluate(problem(model, PLENTY), Policy())
    known = collect_bound_inputs(model, keep.step)
    assert min_step_ns(known, keep.peak_bytes, PLENTY, DEFAULT_ALLOW) <= keep.step_time_ns
    catalog = build_catalog(model)
    rows = LayerAssignments(model, catalog)
    chance = random.Random(0)
    present = compute_liveness(model, model.layout.num_micro_batches)
    num_binding = 0
    for _ in range(examples(90, 200)):
        policy = rows.policy(random_choice(catalog, chance))
        evaluation = evaluate(problem(model, PLENTY), policy)
        least_ns = min_step_ns(known, evaluation.peak_bytes, PLENTY, DEFAULT_ALLOW)
        assert least_ns is not None and least_ns <= evaluation.step_time_ns, policy
        assert least_budget_bytes(known, PLENTY, DEFAULT_ALLOW) <= evaluation.peak_bytes
        num_binding += least_ns > keep.step_time_ns
        least_alive_bytes = spare_bytes(present, evaluation.step.timeline)
        assert least_alive_bytes.min() == 0, policy  # never less, and at the begin nothing else is there
    assert num_binding >= examples(5, 10)


def pipelined(chance: random.Random) -> StepModel:
    """The small model on stages, with communication in the layers, some of it an operator of its own."""
    num_stages, num_chunks = chance.choice((2, 3)), chance.choice((1, 2, 2))
    num_layers = num_stages * num_chunks * chance.choice((1, 2))
    links = with_links(chance.choice((10**10, 2 * 10**11)))
    model = small_model(num_layers, num_stages, num_stages * chance.choice((1, 2)), links, num_chunks)
    scheduler = chance.choice(("1f1b", "1f1b_less_memory", "gpipe", "seqpipe"))
    settings = replace(model.settings, pipeline=replace(model.settings.pipeline, scheduler=scheduler))
    names, backward, collectives = chance.sample(("exp", "relu", "dtanh", "dmul", "dexp"), 2), [], {}
    for made in model.captured.graph.backward:
        if "dtanh" in names and made.name.startswith("dtanh"):
            saved, gradient = made.inputs
            reduced = node(f"reduced{made.layer_index}", "AllReduce", gradient, MB, layer=made.layer_index)
            backward.append(reduced)
            made = replace(made, inputs=(saved, reduced.name))
        backward.append(made)
    for i in range(num_layers):
        for name in names:
            known = Collective("AllReduce", MB * chance.choice((1, 4)), 2, name != "dtanh" and chance.random() < 0.5)
            collectives[f"reduced{i}" if name == "dtanh" else f"{name}{i}"] = (known,)
    graph = replace(model.captured.graph, backward=tuple(backward))
    return StepModel(replace(model.captured, graph=graph, collectives=collectives), model.costs, settings)


def test_no_policy_of_a_pipeline_beats_the_bound():
    """Random policies of small pipelines, each at the budget of its own peak, those that do not swap without it."""
    chance, num_binding = random.Random(0), 0
    for seed in range(examples(12, 100)):
        model = pipelined(chance)
        keep = evaluate(problem(model, PLENTY), Policy())
        known, catalog = collect_bound_inputs(model, keep.step), build_catalog(model)
        rows = LayerAssignments(model, catalog)
        assert min_step_ns(known, keep.peak_bytes, PLENTY, DEFAULT_ALLOW) == keep.step_time_ns, seed
        for _ in range(examples(6, 30)):
            policy = rows.policy(random_choice(catalog, chance))
            evaluation = evaluate(problem(model, PLENTY), policy)
            for allow in (DEFAULT_ALLOW, Allow(swap=bool(policy.op_swap))):
                least_ns = min_step_ns(known, evaluation.peak_bytes, PLENTY, allow)
                assert least_ns is not None and least_ns <= evaluation.step_time_ns, (seed, policy)
                num_binding += least_ns > keep.step_time_ns
    assert num_binding >= examples(5, 50)


def spare_bytes(present: Liveness, timeline: Timeline) -> np.ndarray:
    """What a policy has on the device besides what every policy has, while each operator of all of them runs."""
    of_every = np.flatnonzero(present.program.ops.kind <= OpKind.BACKWARD)
    own = np.flatnonzero(timeline.program.ops.kind <= OpKind.BACKWARD)
    assert len(own) == len(of_every)
    begin_ns, end_ns = interval_times(timeline)
    size_bytes = timeline.program.intervals.size_bytes
    moments_ns = timeline.op_start_ns[own][:, None]
    alive_bytes = ((begin_ns <= moments_ns) & (moments_ns < end_ns)) @ size_bytes
    takes_time = timeline.program.ops.duration_ns[own] > 0
    return (alive_bytes - present.fixed_bytes[of_every])[takes_time]


def random_choice(catalog: Catalog, chance: random.Random) -> np.ndarray:
    """Each item of the first layers, as many as chance will have it, is kept, swapped or made again."""
    freed = catalog.freed_bytes[list(catalog.layer_classes)]
    assignment = np.zeros(freed.shape[:2], np.int64)
    for group in range(1, freed.shape[1]):
        ways = np.flatnonzero(freed[0, group] > 0).tolist()
        way = chance.choice([None, *ways])
        if way is not None:
            assignment[: chance.randint(0, len(assignment)), group] = -way or chance.choice((1, 3, 33))
    if chance.random() < 0.3:
        whole = chance.randint(0, len(assignment))
        assignment[whole:, 0], assignment[whole:, 1:] = -1, 0
    return assignment


@pytest.mark.parametrize("num_stages", [1, 2])
@pytest.mark.parametrize("num_micro_batches", [1, 3])
@pytest.mark.parametrize("has_view", [False, True])
def test_no_policy_beats_the_bound_where_layers_hand_on_what_nobody_holds(num_stages, num_micro_batches, has_view):
    """Names swapped and run again at random; each policy at the budget of its own peak."""
    plain = small_model(4, num_stages, num_micro_batches)
    change, more = changed_view("tanh1", "exp2") if has_view else (lambda node: node, ())
    model = changed(plain, change, more, [f"tanh{layer}" for layer in range(4)])
    keep = model.simulate(Policy())
    known, chance, num_binding = collect_bound_inputs(model, keep), random.Random(0), 0
    assert sum(map(len, (tensor_graph.boundary_inputs for tensor_graph in known.tensor_graphs))) == 3
    cells, names = ("attn", "mlp"), ("attn.exp", "attn.mul", "mlp.relu", "mlp.tanh")
    for _ in range(examples(60, 1000)):
        where = {name: Layers(tuple(layer for layer in range(4) if chance.random() < 0.7)) for name in (*cells, *names)}
        # A copy of tanh would run for the next layer: nothing simulates that.
        again = tuple(
            OpRecompute(exact_pattern(name), where[name]) for name in (*cells, *names[:3]) if chance.random() < 0.5
        )
        swaps = tuple(
            OpSwap(exact_pattern(name), where[name], chance.choice((1, 4))) for name in names if chance.random() < 0.2
        )
        policy = Policy(True, op_swap=swaps, select_recompute=again)
        evaluation = evaluate(problem(model, PLENTY), policy)
        least_ns = min_step_ns(known, evaluation.peak_bytes, PLENTY, DEFAULT_ALLOW)
        assert least_ns is not None and least_ns <= evaluation.step_time_ns, policy
        num_binding += least_ns > keep.timeline.step_time_ns
    assert num_binding
