"""Generated configurations, valid, broken and mutated: no traceback, and what is normalised stays so."""

import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mindswap.config.parse import parse_document
from mindswap.config.problem import Level
from mindswap.config.render import document_from_data
from mindswap.policy.summary import summarize_policy
from mindswap.report.policy_text import format_policy
from mindswap.report.problems import format_problems
from mindswap.rules.checker import check_before_network, check_document, check_shape
from tests.builders import LLAMA_USES, trees
from tests.strength import examples

NUM_LAYERS = 4
MODEL = trees(NUM_LAYERS, uses=LLAMA_USES)
RELAXED = settings(max_examples=examples(20, 60), suppress_health_check=[HealthCheck.too_slow])

NAMES = ["attention", "feed_forward", "add", r"attention\.wq", r".*\.flash_attention", r"feed_forward\.mul", ".*"]
names = st.sampled_from([*NAMES, r".*\.norm"])
indices = st.lists(st.integers(0, NUM_LAYERS - 1), unique=True, min_size=1, max_size=NUM_LAYERS)
valid_layers = st.one_of(st.just(True), indices, indices.map(tuple), st.just("0-2"), st.just(["0-1", 3]))
prefetches = st.integers(1, 50)

scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 9),
    st.integers(),
    st.floats(),
    st.sampled_from(["0-3", "3-0", "True", "*", "(", "a.b", "attention", r"none\.such", "", " "]),
    st.text(max_size=8),
)
keys = st.one_of(
    st.sampled_from(["swap", "layers", "op_name", "backward_prefetch", "recompute", "layer_swap", "op_swap"]), scalars
)


def collections(inner):
    return st.one_of(st.lists(inner, max_size=4), st.dictionaries(keys, inner, max_size=4))


junk = st.recursive(scalars, collections, max_leaves=12)


def rarely_junk(strategy):
    return st.one_of(strategy, strategy, strategy, junk)


def swap_entries(with_name, layers=valid_layers, prefetch=prefetches, name=names):
    entry = {"backward_prefetch": prefetch, "layers": layers}
    return st.fixed_dictionaries(entry | ({"op_name": name} if with_name else {}))


def swap_sections(entry_of, prefetch, swap):
    return st.fixed_dictionaries(
        {"swap": swap},
        optional={
            "default_prefetch": prefetch,
            "layer_swap": st.one_of(st.none(), st.lists(entry_of(False), max_size=3), entry_of(False)),
            "op_swap": st.one_of(
                st.none(),
                st.lists(entry_of(True), max_size=4),
                entry_of(True),
                st.dictionaries(names, st.lists(entry_of(False), max_size=2), max_size=3),
            ),
        },
    )


recompute_layers = st.one_of(st.booleans(), indices, st.just("0-1"))
select = st.one_of(
    st.booleans(), indices, st.lists(names, max_size=3), st.dictionaries(names, recompute_layers, max_size=3)
)
SELECT_KEYS = (
    "select_recompute",
    "select_comm_recompute",
    "select_recompute_exclude",
    "select_comm_recompute_exclude",
)


def recompute_sections(layers, selected, flag):
    return st.fixed_dictionaries(
        {},
        optional={
            "recompute": layers,
            **dict.fromkeys(SELECT_KEYS, selected),
            "mp_comm_recompute": flag,
            "recompute_slice_activation": flag,
        },
    )


valid_configs = st.fixed_dictionaries(
    {
        "swap_config": swap_sections(swap_entries, prefetches, st.booleans()),
        "recompute_config": recompute_sections(recompute_layers, select, st.booleans()),
    }
)
broken_configs = st.fixed_dictionaries(
    {
        "swap_config": rarely_junk(
            swap_sections(
                lambda with_name: rarely_junk(
                    swap_entries(with_name, rarely_junk(valid_layers), rarely_junk(prefetches), rarely_junk(names))
                ),
                rarely_junk(prefetches),
                rarely_junk(st.just(True)),
            )
        ),
        "recompute_config": rarely_junk(recompute_sections(junk, junk, junk)),
    },
    optional={
        "context": rarely_junk(st.dictionaries(st.sampled_from(["mode", "device_target", "jit_level"]), junk)),
        "model": rarely_junk(st.fixed_dictionaries({"model_config": rarely_junk(st.just({"num_layers": 4}))})),
        "parallel_config": st.one_of(junk, st.just({"pipeline_stage": 2})),
        "use_legacy": junk,
    },
)


def check_all(document):
    """Everything that `mindswap check` does with a document."""
    for model in (None, MODEL):
        result = check_document(document, trees=model, environ={"ENABLE_LAZY_INLINE_NO_PIPELINE": "0"})
        format_problems(result.problems, colour=True)
        assert (result.policy is None) == any(p.level is Level.ERROR for p in result.problems)
        if result.policy is not None:
            summary = summarize_policy(result.policy, result.num_layers, result.trees)
            format_policy(summary)
            [group.to_data() for group in summary.groups]
    return result


@RELAXED
@given(valid_configs)
def test_valid_configurations_can_be_read_and_written(data):
    result = check_shape(document_from_data(data, "data"), NUM_LAYERS)
    assert result.problems == ()
    again = check_shape(document_from_data(result.policy.to_config(), "data"), NUM_LAYERS)
    assert again.problems == () and again.policy == result.policy
    text = yaml.safe_dump(result.policy.to_config(), sort_keys=False)
    assert check_shape(parse_document(text, "x"), NUM_LAYERS).policy == result.policy
    check_all(document_from_data(data, "data"))


@RELAXED
@given(valid_configs)
def test_layers_hold_no_index_that_was_not_written(data):
    policy = check_shape(document_from_data(data, "data"), NUM_LAYERS).policy
    for entry in (*policy.layer_swap, *policy.op_swap, *policy.select_recompute):
        assert entry.layers
        assert all(0 <= index < NUM_LAYERS for index in entry.layers.resolve(NUM_LAYERS))
    assert all(swap.prefetch >= 1 for swap in (*policy.layer_swap, *policy.op_swap))


@RELAXED
@given(broken_configs)
def test_broken_data_gives_problems_not_tracebacks(data):
    check_all(document_from_data(data, "data"))


@RELAXED
@given(broken_configs)
def test_broken_data_means_the_same_as_text(data):
    text = yaml.safe_dump(data, sort_keys=False, allow_unicode=False)
    document = parse_document(text, "x.yaml")
    check_all(document)
    if not document.problems and not document.duplicates:
        rules = sorted(p.rule for p in check_document(document_from_data(yaml.safe_load(text), "data")).problems)
        in_text = check_document(document).problems
        unplaced = {"unused-default-prefetch", "section-refused"}  # MindFormers' own keys are told by their place
        assert {r for r in rules} - unplaced == {p.rule for p in in_text} - unplaced


@RELAXED
@given(valid_configs, st.booleans())
def test_a_swap_that_is_off_never_stops_a_run(data, has_junk):
    data["swap_config"]["swap"] = False
    if has_junk:
        data["swap_config"]["op_swap"] = [3, {"junk": 1}]
    result = check_before_network(document_from_data(data, "data"), {})
    assert result.errors == ()
    assert not result.policy.is_swap_enabled


BASE_TEXT = r"""
model: &m {model_config: {num_layers: 4}}
context: {mode: 0, memory_optimize_level: "O0"}
recompute_config:
  recompute: False
  select_recompute: {'feed_forward': [0, 3]}
swap_config:
  swap: True
  op_swap:
    - {op_name: 'attention\.wq', backward_prefetch: 20, layers: [0, 1, '2-3']}
    - {<<: {layers: True}, op_name: [add, "feed_forward"], backward_prefetch: 10}
"""
FRAGMENTS = [*"[]{}:&*?'%@#|>!é\"", "&a ", "*a ", "*m ", "!!int ", "!!python/name:os.system ", "True", "null"]
FRAGMENTS += ["- ", "\n", "\t", "\0", "  ", "---\n", "<<: *m", "? ", "swap: False\n", "9" * 30]


@settings(RELAXED, max_examples=examples(30, 150))
@given(st.lists(st.tuples(st.integers(0, len(BASE_TEXT)), st.integers(0, 12), st.sampled_from(FRAGMENTS)), max_size=5))
def test_mutated_text(edits):
    text = BASE_TEXT
    for start, length, replacement in edits:
        text = text[:start] + replacement + text[start + length :]
    check_all(parse_document(text, "x.yaml"))


@settings(RELAXED, max_examples=examples(30, 100))
@given(st.lists(st.tuples(st.integers(0, len(BASE_TEXT)), st.binary(max_size=6)), max_size=4))
def test_mutated_bytes(edits):
    content = BASE_TEXT.encode()
    for start, replacement in edits:
        content = content[:start] + replacement + content[start + len(replacement) :]
    check_all(parse_document(content, "x.yaml"))


@RELAXED
@given(st.binary(max_size=200))
def test_any_bytes(content):
    check_all(parse_document(content, "x.yaml"))


@RELAXED
@given(st.text(max_size=60))
def test_any_pattern(pattern):
    data = {"swap_config": {"swap": True, "op_swap": [{"op_name": pattern, "backward_prefetch": 1, "layers": True}]}}
    check_all(document_from_data(data, "data"))


REGEX_PARTS = [*"a.*+?()[]^$|\\-", r"\.", r"\w", "{2}", "{,}", "(?:", "(?=", "(?<=", "(?i)"]


@RELAXED
@given(st.lists(st.sampled_from(REGEX_PARTS), max_size=8).map("".join))
def test_any_regex(pattern):
    data = {"swap_config": {"swap": True, "op_swap": [{"op_name": pattern, "backward_prefetch": 1, "layers": True}]}}
    check_all(document_from_data(data, "data"))
