"""A step of made-up layers for the lower bound, and variants of `models.small_model`."""

from collections.abc import Collection, Sequence
from dataclasses import replace

from mindswap.graph.analysis.work import measure_work
from mindswap.graph.model import Node
from mindswap.graph.passes.fusion import readers_of_saved
from mindswap.planner.lower_bound import BoundInputs, min_step_ns
from mindswap.planner.lower_bound.inputs import Stage, StageLayers
from mindswap.planner.lower_bound.recompute_times import fusion_saving_ns
from mindswap.planner.lower_bound.tensor_graph import TensorGraph
from mindswap.planner.problem import DEFAULT_ALLOW, Allow, PlanProblem
from mindswap.simulator.placing import TransferCosts
from mindswap.simulator.step_model import StepModel
from tests.graph.builders import KIB, graph, node
from tests.planner.models import small_model

PLENTY = 10**12
# Two tensors of 100 and 50 bytes; the second is made from the first in 20 ns.
FLOW = TensorGraph(
    sizes_bytes=(100, 50),
    producers=(0, 1),
    saved=frozenset({0, 1}),
    outputs=frozenset(),
    reads=((1, 0),),
    recompute_ns=(10, 20),
    communication_ns=(0, 0),
)


def bound_inputs(
    tensor_graph: TensorGraph = FLOW, ns_per_byte: int = 1, window_ns: int = 0, num_layers: int = 2, **options
) -> BoundInputs:
    """A step of 1000 ns; all that the layers save is there at the fullest moment."""
    costs = TransferCosts(lambda size: size * ns_per_byte, lambda size: size * ns_per_byte)
    stage = Stage(num_layers * tensor_graph.saved_bytes, {StageLayers(0): num_layers}, window_ns, work_ns=1000)
    return BoundInputs((tensor_graph,), (stage,), costs, **options)


def bound(known: BoundInputs, budget_bytes: int, allow: Allow = DEFAULT_ALLOW, host_bytes: int = PLENTY) -> int | None:
    return min_step_ns(known, budget_bytes, host_bytes, allow)


def boundary_inputs(*backward):
    """What a reader of `silu` and `cast` saves if it gets `silu` in registers; 10 ns per KiB, 1 ns in the cache."""
    forward = [node("start", "MatMul", "x w"), node("silu", "SiLU", "start"), node("cast", "Cast", "start")]
    step = graph(forward, list(backward), "silu cast start")

    def operator_ns(_, work):
        moved = (work.read_bytes + work.written_bytes) // KIB
        return moved * (1 if moved <= 2 else 10) + (0 if work.is_fused else 100)

    return fusion_saving_ns(step, measure_work(step)[1], readers_of_saved(step), operator_ns).tolist()


def problem(model, budget_bytes: int) -> PlanProblem:
    return PlanProblem(model, budget_bytes, PLENTY, 8)


def changed(
    model: StepModel, change, more: Sequence[tuple[str, Node]] = (), unsaved: Collection[str] = ()
) -> StepModel:
    """The model with operators of forward changed, others put behind some, and values that backward does not read."""
    behind, of = dict(more), model.captured.graph
    forward = [one for node in map(change, of.forward) for one in (node, behind.get(node.name)) if one is not None]
    gone = {f"{name}_b" for name in unsaved}
    backward = tuple(replace(n, inputs=tuple(name for name in n.inputs if name not in gone)) for n in of.backward)
    saved = tuple(one for one in of.saved if one.forward_name not in unsaved)
    step = replace(of, forward=tuple(forward), backward=backward, saved=saved)
    return StepModel(replace(model.captured, graph=step), model.costs, model.settings)


def changed_view(maker: str, reader: str):
    """A change, and what is put in: a reshape of a function in the cell of the maker, for one of its readers."""

    def change(node: Node) -> Node:
        return (
            replace(node, inputs=tuple("view" if n == maker else n for n in node.inputs))
            if node.name == reader
            else node
        )

    of = next(node for node in small_model(2).captured.graph.forward if node.name == maker)
    return change, [(maker, replace(of, name="view", op="Reshape", inputs=(maker,), scope=f"{of.scope}_view"))]
