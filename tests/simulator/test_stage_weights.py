"""Weights and gradients of the stages of `steps.py`, by hand."""

from dataclasses import replace

from mindswap.config.pipeline_layout import Pipeline
from mindswap.config.weight_sharding import WeightSharding
from mindswap.policy.model import Policy
from mindswap.simulator.captured_step import find_tied_parameters, gradient_key
from mindswap.simulator.cost.cost_table import CostTable
from mindswap.simulator.cost.static_memory import Parameter
from mindswap.simulator.stage_weights import describe_training, min_reduction_ns
from mindswap.simulator.step_model import StepModel
from tests.graph.builders import KIB
from tests.simulator.cost.builders import device
from tests.simulator.steps import SETTINGS, captured, model

NUM_LAYERS = 6
MODEL = model(NUM_LAYERS)
KEEP_ALL = Policy(True)
PLACES = ((None, False), (None, True), (0, False), (3, True))


def test_static_memory_is_that_of_the_weights_of_each_stage():
    # The one weight is the embedding table: 1 KiB of float32, two states of AdamW.
    (static,) = MODEL.static
    assert (static.parameter_bytes, static.gradient_bytes, static.optimizer_bytes) == (KIB, 0, 2 * KIB)
    first, second = model(NUM_LAYERS, pipeline=Pipeline(num_stages=2), num_micro_batches=2).static
    assert (first.parameter_bytes, second.total_bytes) == (KIB, 0)
    assert first.gradient_bytes == KIB  # summed up over micro-batches


def frozen_model(**settings):
    step = captured(NUM_LAYERS)
    step = replace(step, graph=replace(step.graph, frozen=("embedding.table",)))
    return StepModel(step, CostTable(device()), replace(SETTINGS, **settings))


def test_a_weight_that_is_not_trained_has_no_state_no_sum_no_time_and_no_communication():
    own = frozen_model(num_micro_batches=2, is_accumulating=True, is_clipping=True, data_parallel=2)
    trained = model(NUM_LAYERS, num_micro_batches=2, is_accumulating=True, is_clipping=True, data_parallel=2)
    (static,), (before,) = own.static, trained.static
    assert (static.parameter_bytes, static.gradient_bytes, static.optimizer_bytes) == (KIB, 0, 0)
    assert (before.parameter_bytes, before.gradient_bytes, before.optimizer_bytes) == (KIB, KIB, 2 * KIB)
    assert [term.duration_ns for term in own.simulate(KEEP_ALL).terms] == [0] * 5
    assert sum(term.duration_ns for term in trained.simulate(KEEP_ALL).terms) > 0
    assert own.weights.closing_bytes == (0,)


def test_a_note_says_how_many_weights_are_trained():
    matrix, vector = (Parameter("w", 8, 2, shape=shape, is_trained=False) for shape in ((1, 2), (2,)))
    trained = replace(matrix, is_trained=True)
    (note,) = describe_training([[matrix, trained], [trained]])
    assert note.startswith("2 of 3 weights are trained")
    assert describe_training([[trained], [vector]]) == ()  # the bias of a router, which is not for training


def test_a_tied_weight_is_on_the_last_stage_twice_with_one_gradient():
    """The loss reads the embedding table, 1 KiB: received, and as the parameter that Receive names."""
    step = captured(NUM_LAYERS)
    *before, loss = step.graph.forward
    tied = replace(step.graph, forward=(*before, replace(loss, inputs=(*loss.inputs, "weight"))))
    settings = replace(SETTINGS, pipeline=Pipeline(num_stages=2), num_micro_batches=2)
    own = StepModel(replace(step, graph=tied), CostTable(device()), settings)
    (doubt,) = own.caveats
    assert doubt.startswith("embedding.table is read by the first and the last pipeline stage")
    assert StepModel(replace(step, graph=tied), CostTable(device()), SETTINGS).caveats == ()
    _, last = own.static
    assert (last.parameter_bytes, last.gradient_bytes, last.optimizer_bytes) == (2 * KIB, KIB, 0)


def test_a_last_stage_that_predicts_more_tokens_trains_an_embedding_of_its_own():
    """Dry run of `deepseek pp2_tp2 of_1_of_2`: weight, sum of gradients, adam_m and adam_v of it are on both stages."""
    step = captured(NUM_LAYERS)
    scope = {"cell_path": "mtp.layers.0.enorm", "scope": "Default/mtp-MTP/layers-CellList/0-Layer/Mul-op0"}
    *before, loss = step.graph.forward
    predicted = replace(loss, name="predicted", inputs=(*loss.inputs, "weight"), **scope)
    graph = replace(step.graph, forward=(*before, predicted, replace(loss, inputs=("predicted",))))
    settings = replace(SETTINGS, pipeline=Pipeline(num_stages=2), num_micro_batches=2)
    own = StepModel(replace(step, graph=graph), CostTable(device()), settings)
    assert own.caveats == ()
    _, last = own.static
    assert (last.parameter_bytes, last.gradient_bytes, last.optimizer_bytes) == (KIB, KIB, 2 * KIB)


def test_a_tied_weight_that_the_parallel_optimizer_cuts_is_a_part_on_the_last_stage():
    """Read behind the layers through what makes it whole; its sum of gradients is whole."""
    step = captured(NUM_LAYERS)
    *before, loss = step.graph.forward
    tied = replace(step.graph, forward=(*before, replace(loss, inputs=(*loss.inputs, "weight"))))
    sharding = WeightSharding(2, threshold_bytes=KIB)
    settings = replace(SETTINGS, pipeline=Pipeline(num_stages=2), num_micro_batches=2, sharding=sharding)
    _, last = StepModel(replace(step, graph=tied), CostTable(device()), settings).static
    assert (last.parameter_bytes, last.gradient_bytes) == (2 * KIB // 2, KIB)


def test_a_weight_is_behind_the_layers_when_the_last_one_has_begun():
    """A sum of the last layer that the compiler puts at the very end does not make the loss a part of the layers."""
    step = captured(NUM_LAYERS)
    *before, loss = step.graph.forward
    late = replace(before[-1], name="late")
    tied = replace(step.graph, forward=(*before, replace(loss, inputs=(*loss.inputs, "weight")), late))
    assert [parameter.name for parameter in find_tied_parameters(tied)] == ["embedding.table"]


def test_a_gradient_is_known_by_its_shape_and_whether_it_is_before_in_or_behind_the_layers():
    weights = [Parameter("w", 8, 2, layer_index=index, is_after_layers=behind, shape=(2,)) for index, behind in PLACES]
    assert [gradient_key(weight) for weight in weights] == [(-1, (2,)), (1, (2,)), (0, (2,)), (0, (2,))]


def test_terms_by_name():
    # The weight has 256 numbers in float32. Scaled 8 bytes each, checked 4; clipped only if asked for. One micro-batch:
    # nothing to add up.
    names = {term.name: term.duration_ns for term in MODEL.simulate(KEEP_ALL).terms}
    assert list(names) == ["gradient accumulation", "gradient scaling", "overflow check", "optimizer"]
    assert names["gradient accumulation"] == 0 < names["gradient scaling"]
    clipped = model(NUM_LAYERS, is_clipping=True, is_state_offloaded=True).simulate(KEEP_ALL).terms
    assert [term.name for term in clipped][3:] == ["gradient clipping", "optimizer", "optimizer states, copied"]


def test_accumulation_counts_each_micro_batch_of_the_step():
    two = model(NUM_LAYERS, num_micro_batches=2, is_accumulating=True)
    terms = {term.name: term.duration_ns for term in two.simulate(KEEP_ALL).terms}
    short = two.with_micro_batches(1)
    assert terms["gradient accumulation"] == 2 * short.terms(short.simulate(KEEP_ALL).timeline)[0].duration_ns > 0


def test_gradients_of_the_first_layer_of_a_stage_are_there_last():
    assert min_reduction_ns((5, 3, 2, 1), [(0, 1, 2, 3)]) == 5 + 3
    assert min_reduction_ns((0, 0, 7, 4), [(2, 3)]) == 7
    assert min_reduction_ns((5, 0, 0, 4), [(0,), (3,)]) == 5  # a chunk without layers before
