from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mindswap.config.problem import Level
from mindswap.config.render import document_from_data
from mindswap.errors import PolicyError
from mindswap.features.convert.stage_counts import to_index_form
from mindswap.policy.applied import as_applied, recomputed_operators
from mindswap.policy.equivalence import policy_sections
from mindswap.policy.formats.mindformers1.stage_recompute import expand_stage_recompute
from mindswap.policy.model import Policy
from mindswap.rules.checker import check_document, check_shape
from tests.builders import document, trees
from tests.strength import examples

STAGES = "parallel_config: {{pipeline_stage: 2}}, recompute_config: {}"


MODEL = trees(8)


def tried(convert, *asked):
    """What comes out, or the error with the problems for which nothing does."""
    try:
        return convert(*asked)
    except PolicyError as error:
        return error


def index(text, num_layers=8, model=MODEL):
    return tried(to_index_form, document(text), num_layers, model)


def test_counts_become_indices_and_nothing_is_swapped():
    converted = index("{" + STAGES.format("{recompute: [1, 2], select_recompute: {'feed_forward': [2, 0]}}") + "}")
    assert converted.sections == {
        "swap_config": {"swap": True, "op_swap": []},
        "recompute_config": {"recompute": [0, 4, 5], "select_recompute": {"feed_forward": [1]}},  # 0 is whole
    }


def test_what_is_written_passes_its_own_check():
    """Of what is selected in layers fully recomputed, and of swap that moves nothing, `check` would warn."""
    for counts in ("{recompute: [1, 2], select_recompute: {'feed_forward': [2, 0]}}", "{recompute: False}", "{}"):
        before = document("{" + STAGES.format(counts) + "}")
        after = written(before.data(), to_index_form(before, 8, MODEL))
        assert check_document(after, 8, MODEL).problems == ()


def test_all_layers_become_true_and_defaults_are_not_added():
    assert index("{" + STAGES.format("{recompute: [4, 4]}") + "}").sections["recompute_config"] == {"recompute": True}
    assert index("{" + STAGES.format("{select_recompute: [[4, 4]]}") + "}").sections["recompute_config"] == {
        "recompute": False,
        "select_recompute": {r"feed_forward\.mul": True, r"feed_forward\.w1\.activation\.silu": True},
    }


def test_what_had_no_effect_is_said_and_left_out():
    text = "{recompute: [1, 0], mp_comm_recompute: False}, swap_config: {swap: False, layer_swap: [{layers: [0]}]}"
    converted = index("{" + STAGES.format(text) + "}")
    assert converted.sections["recompute_config"] == {"recompute": [0], "mp_comm_recompute": True}
    assert [problem.message for problem in converted.problems] == [
        "recompute_config.mp_comm_recompute: had no effect with swap off, so True is written",
        "swap_config.layer_swap: had no effect with swap off, so it is left out",
    ]


def test_what_mindformers_recomputes_besides_is_said():
    text = "{model: {arch: {type: LlamaForCausalLM}}, recompute_config: {select_recompute: ['feed_forward']}}"
    (problem,) = index(text).problems
    assert problem.level is Level.WARNING and "scores of attention" in problem.message
    flash = text.replace("}}, rec", "}, model_config: {use_flash_attention: True}}, rec")
    assert index(flash).problems == ()


def test_impossible_counts_are_refused():
    converted = index("{" + STAGES.format("{recompute: [1, 2, 3]}") + "}")
    assert isinstance(converted, PolicyError) and converted.problems[0].rule == "stage-recompute"


def test_the_form_it_has_already():
    assert "in layer indices already" in index("{swap_config: {swap: True}}").problems[0].message


# Excluded cells: with swap off MindFormers excludes operators only.

CELL = "{select_recompute: {'feed_forward': True}, select_recompute_exclude: {'feed_forward\\.w1': True%s}}"


def test_an_excluded_cell_is_left_out_of_the_index_form():
    """All 6 operators of feed_forward are recomputed with swap off, those of w1 too; so they are afterwards."""
    converted = index("{" + STAGES.format(CELL % "") + "}")
    assert converted.sections["recompute_config"]["select_recompute_exclude"] is False
    (problem,) = converted.problems
    assert problem.level is Level.WARNING
    assert problem.message == (
        "recompute_config.select_recompute_exclude['feed_forward\\.w1']: had no effect on 'feed_forward.w1', a cell: "
        "MindFormers excludes operators only; so it is left out"
    )


def test_operators_that_are_excluded_beside_a_cell_stay():
    """`feed_forward\\..*l` names the operator mul; `feed_forward\\.m.*|w1` a cell and an operator."""
    kept = index("{" + STAGES.format(CELL % ", 'feed_forward\\..*l': [1, 0]") + "}")
    assert kept.sections["recompute_config"]["select_recompute_exclude"] == {r"feed_forward\..*l": [0]}
    text = CELL.replace(r"\.w1", r"\.(?:mul|w1)") % ""
    split = index("{" + STAGES.format(text) + "}")
    assert split.sections["recompute_config"]["select_recompute_exclude"] == {r"feed_forward\.mul": True}
    assert "only the operators it names beside are written" in split.problems[0].message


def test_what_is_excluded_from_an_unknown_model_is_refused():
    converted = index("{" + STAGES.format(CELL % "") + "}", model=None)
    assert isinstance(converted, PolicyError) and "no table has this model" in converted.problems[0].message


def test_a_pattern_that_is_no_regular_expression_is_refused():
    converted = index("{" + STAGES.format("{select_recompute: {'(': True}}") + "}")
    assert isinstance(converted, PolicyError) and "'('" in converted.problems[0].message


# The same operators before and after.

RELAXED = settings(max_examples=examples(30, 150), suppress_health_check=[HealthCheck.too_slow])
names = st.sampled_from(["attention", r"feed_forward\.mul", "add"])


@st.composite
def stage_configs(draw):
    num_stages, num_chunks = draw(st.integers(1, 3)), draw(st.integers(1, 3))
    size = draw(st.integers(1, 3))
    row = st.lists(st.integers(0, size), min_size=num_stages, max_size=num_stages)
    counts = st.one_of(st.booleans(), st.lists(row, min_size=num_chunks, max_size=num_chunks))
    config = {
        "parallel_config": {"pipeline_stage": num_stages},
        "model": {"model_config": {"num_layers": size * num_stages * num_chunks, "pp_interleave_num": num_chunks}},
        "parallel": {"pipeline_config": {"pipeline_interleave": num_chunks > 1}},
        "recompute_config": {
            "recompute": draw(counts),
            "select_recompute": draw(st.dictionaries(names, counts, max_size=3)) or False,
            "select_comm_recompute": draw(st.dictionaries(names, counts, max_size=2)) or False,
        },
    }
    return config, size * num_stages * num_chunks


def written(config, converted):
    return document_from_data({**config, **converted.sections}, "x")


excluded = st.sampled_from(["attention", r"attention\.w.", r"feed_forward\..*", r"feed_forward\.mul", "add"])


@RELAXED
@given(stage_configs(), st.dictionaries(excluded, st.booleans(), max_size=2))
def test_in_every_layer_the_same_operators_are_recomputed(case, exclude):
    config, num_layers = case
    model = trees(num_layers)
    config["recompute_config"]["select_recompute_exclude"] = exclude
    before = as_applied(expand_stage_recompute(document_from_data(config, "x"), num_layers).policy, model)
    by_index = written(config, to_index_form(document_from_data(config, "x"), num_layers, model))
    checked = check_document(by_index, num_layers, model)
    assert "select-in-recomputed-layer" not in [problem.rule for problem in checked.problems]
    after = check_shape(by_index, num_layers).policy
    assert after.op_swap == ()
    for index, tree in enumerate(model.layers):
        assert recomputed_operators(before, index, tree) == recomputed_operators(after, index, tree)


def test_sections_keep_what_else_is_in_them():
    data = {
        "mindswap": {"cpu_stand_ins": True, "output_recompute": [0]},
        "recompute_config": {"mp_comm_recompute": True},
    }
    sections = policy_sections(Policy(is_swap_enabled=True), data, 4)
    assert sections["mindswap"] == {"cpu_stand_ins": True}
    assert sections["recompute_config"] == {"recompute": False, "mp_comm_recompute": True}
