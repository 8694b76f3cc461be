"""The step of a configuration, without MindSpore."""

import re
from dataclasses import replace

import pytest

from mindswap.config.parse import parse_document
from mindswap.errors import SimulationError
from mindswap.features.step import Step, find_compute_dtype
from mindswap.graph.model import TensorType
from mindswap.policy.model import ALL_LAYERS, OpRecompute, Policy
from mindswap.report.html import memory_curve
from tests.graph.builders import graph, node
from tests.simulator.steps import model


def test_what_cannot_be_simulated_is_said_with_its_place():
    """`add` is what a layer of `steps.py` hands on; the value of `select_recompute` begins in line 2, column 21."""
    document = parse_document("recompute_config:\n  select_recompute: ['.*']\n", "x.yaml")
    policy = Policy(True, select_recompute=(OpRecompute(".*", ALL_LAYERS),))
    with pytest.raises(SimulationError, match=r"x\.yaml:2:21: layer 0: .*\n    fix: recompute without add: "):
        Step(document, policy, model(6), None).simulate()


def test_objects_are_one_line_in_a_notebook_and_figures_are_floats():
    step = Step(parse_document("", "x.yaml"), Policy(), model(6), None)
    run = step.simulate()
    assert repr(step) == f"<Step network: 6 layers, 1 card, {step.device.title}>"
    assert repr(run).startswith("<Run network: ") and repr(run).endswith(", simulated>") and "\n" not in repr(run)
    assert (run.step_time_s * 1e9, run.peak_gib * 2**30) == pytest.approx((run.step_time_ns, run.peak_bytes))
    plan = step.plan("20GiB")
    assert (
        repr(plan)
        == repr(run)[:-1].replace("Run", "StepPlan").rpartition("fits in")[0] + "fits in 20.0 GiB, simulated>"
    )
    assert (plan.step_time_s, plan.peak_gib) == (run.step_time_s, run.peak_gib)
    assert "<pre>plan for 20.0 GiB per card" in plan._repr_html_()


def test_a_run_in_a_notebook_is_its_table_and_its_curve():
    page = Step(parse_document("", "x.yaml"), Policy(), model(6), None).simulate()._repr_html_()
    assert "<pre>simulated step of network" in page
    points = re.search(r'points="([^"]+)"', page).group(1).split()
    assert min(float(point.split(",")[1]) for point in points) == 5  # the peak, 95 of 100 high
    assert "&lt;Run network: " in page


def test_a_curve_has_the_highest_of_each_column():
    """Two moments in the first of 600 columns, the higher one counts; 40 of 80 is half of 95 high."""
    assert 'points="0,52.5 300,5.0"' in memory_curve([0.0, 0.001, 0.5], [10, 40, 80], "x")


def test_the_type_of_a_step_is_that_of_most_work_of_forward_on_matrix_units():
    """64 x 64 x 64 in float16 against 32 x 32 x 32 in float32; backward, which may sum in float32, does not count."""

    def product(name, size, dtype):
        made = TensorType((size, size), dtype, 4 * size * size)
        return replace(node(name, "MatMul", "x y"), outputs=(made,))

    types = dict.fromkeys(("x", "y"), TensorType((64, 64), "float32", 64 * 64 * 4))
    forward = [product("big", 64, "float16"), product("small", 8, "float32")]
    backward = [product(f"gradient{number}", 64, "float32") for number in range(3)]
    assert find_compute_dtype(replace(graph(forward, backward), types=types)) == "float16"
    assert find_compute_dtype(graph([node("a", "Mul", "x")])) == "float16"  # none at all
