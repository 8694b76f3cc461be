"""`recompute_config` with swap off against the real LayerSetting of MindFormers, over thousands of configurations.

Where the two differ on purpose is listed under "Differences", each with a test of its own.
"""

import copy
import random
from types import SimpleNamespace

import pytest

from mindswap.config.render import document_from_data
from mindswap.policy.applied import as_applied, recomputed_operators
from mindswap.policy.cell_tree import LayerTrees
from mindswap.policy.formats.mindformers1.schema import RECOMPUTE_FLAGS
from mindswap.policy.formats.mindformers1.stage_recompute import expand_stage_recompute
from tests.builders import layer
from tests.strength import examples

pytestmark = pytest.mark.mindspore

NUM_CONFIGURATIONS = examples(600, 6000)

OUTLINE = """
    attention_norm
      norm*
    attention
      wq
        matmul*
      mul*
    feed_forward
      w1
        matmul*
        activation
          silu*
      mul*
    mlp
      activation_func
        silu*
      mul*
    add*
"""
TREE = layer(OUTLINE)
PATTERNS = (
    r"feed_forward\.mul",
    r"feed_forward\.w1\.activation\.silu",
    r"feed_forward\.w1\.matmul",
    r".*\.norm",
    r"attention_norm\.norm",
    r".*\.mul",
    "feed_forward",
    r"attention\.w.",
    "add",
    r"no\.such",
    r"feed_forward\..*\.matmul",
)


class Recorder:
    """One operator: keeps what upstream sets on it."""

    def __init__(self):
        self.is_recomputed = self.is_comm_recomputed = False

    def recompute(self, mode=True):
        self.is_recomputed = mode

    def add_prim_attr(self, name, value):
        assert name == "recompute_comm_op"
        self.is_comm_recomputed = value


class RecorderCell:
    """A cell as LayerSetting sees one: `_cells`, and operators that `dir` lists."""

    def __init__(self, node):
        self._cells = {child.name: RecorderCell(child) for child in node.children if not child.is_primitive}
        for child in node.children:
            if child.is_primitive:
                setattr(self, child.name, Recorder())

    def operators(self, path=()):
        for name, value in vars(self).items():
            if isinstance(value, Recorder):
                yield ".".join((*path, name)), value
        for name, cell in self._cells.items():
            yield from cell.operators((*path, name))

    def recompute(self, **_):
        for _, operator in self.operators():
            operator.recompute()


@pytest.fixture(scope="module")
def upstream():
    """(configuration) -> what the real LayerSetting makes of it; an Exception where it stops."""
    import mindspore as ms
    from mindformers.modules.transformer.transformer import TransformerRecomputeConfig, TransformerSwapConfig
    from mindformers.parallel_core.training_graph.transformer import utils

    lines = []
    patch = pytest.MonkeyPatch()
    patch.setattr(utils, "logger", SimpleNamespace(info=lines.append, warning=lines.append))

    def run(case):
        lines.clear()
        pipeline = {"pipeline_interleave": case.is_interleaved, "pipeline_scheduler": case.scheduler}
        recompute = copy.deepcopy(case.recompute)  # lists are changed in place
        patch.setattr(utils, "is_legacy_model", lambda: case.use_legacy)
        config = SimpleNamespace(gradient_aggregation_group=4)
        if case.use_legacy:
            config.swap, config.recompute = TransformerSwapConfig(), TransformerRecomputeConfig(**recompute)
            config.pipeline_stage = case.num_stages
        else:
            vars(config).update(
                dict.fromkeys(RECOMPUTE_FLAGS, False),
                cpu_offloading=False,
                cpu_offloading_num_layers=None,
                op_swap=None,
                **recompute,
            )
            config.pipeline_model_parallel_size = case.num_stages
        try:
            ms.set_auto_parallel_context(pipeline_config=pipeline)
            setting = utils.LayerSetting(case.num_layers, case.offset, config, case.num_chunks)
            formative = [line for line in lines if line.startswith("Formative")]
            layers = [_run_layer(setting, index) for index in range(case.num_layers)]
        except Exception as error:  # noqa: BLE001 whatever stops it
            return error
        return formative, layers

    yield run
    patch.undo()
    ms.reset_auto_parallel_context()


def _run_layer(setting, index):
    """Stage and chunk of a layer, and what is recomputed in it, communication apart."""
    cell = RecorderCell(TREE)
    cell.set_comm_fusion = None
    setting.set_recompute(cell, index)
    setting.set_pipeline_stage(cell, index)
    operators = dict(cell.operators())
    return (
        cell.pipeline_stage,
        int(setting.interleave_ids[index]),
        {name for name, operator in operators.items() if operator.is_recomputed},
        {name for name, operator in operators.items() if operator.is_comm_recomputed},
    )


def ours(case):
    """The same from mindswap."""
    result = expand_stage_recompute(document_from_data(case.data(), "data"), case.num_layers)
    if not result.formative_lines:
        assert any(problem.level.value == "error" for problem in result.problems)
        return result.problems
    places = {index: (cell.stage, cell.chunk) for cell in result.layout.cells() for index in cell.layers}
    policy = as_applied(result.policy, LayerTrees((TREE,), {}, "the test layer"))
    layers = [
        (*places[index], *map(set, recomputed_operators(policy, index, TREE))) for index in range(case.num_layers)
    ]
    return list(result.formative_lines), layers


class Case(SimpleNamespace):
    """One configuration."""

    def data(self):
        return {
            "use_legacy": self.use_legacy,
            "model": {"model_config": {"pp_interleave_num": self.num_chunks, "offset": self.offset}},
            "parallel": {
                "pipeline_config": {
                    "pipeline_interleave": self.is_interleaved,
                    "pipeline_scheduler": self.scheduler,
                }
            },
            "parallel_config": {"pipeline_stage": self.num_stages},
            "recompute_config": self.recompute,
        }


def make_case(rng):
    is_interleaved = rng.random() < 0.6
    num_chunks = rng.choice((1, 2, 2, 3))
    num_stages = rng.choice((1, 2, 2, 3, 4, 5))
    chunks = num_chunks if is_interleaved else 1
    cells = num_stages * chunks
    num_layers = rng.randint(max(1, cells - 2), min(3 * cells + 2, 24))
    scheduler = "zero_bubble_v" if rng.random() < 0.12 else "1f1b"
    sizes = (num_stages, chunks, num_layers)
    recompute = {"recompute": make_value(rng, *sizes)}
    for option in ("select_recompute", "select_comm_recompute"):
        recompute[option] = make_select(rng, *sizes)
        recompute[f"{option}_exclude"] = make_select(rng, *sizes) if rng.random() < 0.3 else False
    return Case(
        num_layers=num_layers,
        num_stages=num_stages,
        num_chunks=num_chunks,
        is_interleaved=is_interleaved,
        scheduler=scheduler,
        use_legacy=rng.random() < 0.7,
        offset=make_offset(rng, num_stages, chunks, num_layers),
        recompute=recompute,
    )


def make_offset(rng, stages, chunks, num_layers):
    rest = num_layers % (stages * chunks)
    if rng.random() < 0.1:  # seldom fits
        return rng.choice((0, 1, rest, [rest], [0] * stages, [[0] * stages] * chunks, [1, -1], "x"))
    cells = [0] * (stages * chunks)
    for _ in range(rest):
        cells[rng.randrange(len(cells))] += 1
    if rng.random() < 0.2:  # less than the average somewhere
        cells[rng.randrange(len(cells))] -= 1
        cells[rng.randrange(len(cells))] += 1
    if chunks > 1 and rng.random() < 0.2:  # written once for all chunks
        return [sum(cells[stage::stages]) for stage in range(stages)]
    rows = [cells[start : start + stages] for start in range(0, len(cells), stages)]
    return rows if chunks > 1 or rng.random() < 0.3 else rows[0]


def make_count(rng, num_layers):
    return rng.choice((0, 1, 1, 2, 3, num_layers + 5, True, False))


def make_value(rng, stages, chunks, num_layers):
    form = rng.random()
    if form < 0.25:
        return rng.random() < 0.6
    if form < 0.55:
        length = stages if rng.random() < 0.85 else rng.randint(0, stages + 1)
        counts = [make_count(rng, num_layers) for _ in range(length)]
        return tuple(counts) if rng.random() < 0.2 else counts
    if form < 0.92:
        rows = [[make_count(rng, num_layers) for _ in range(stages)] for _ in range(chunks)]
        if rng.random() < 0.15:
            rows[rng.randrange(chunks)] = rng.random() < 0.5
        if rng.random() < 0.1:
            row = rng.choice(rows)
            if isinstance(row, list):
                row[rng.randrange(stages)] = rng.choice((-2, "1", 1.0, None, [1]))
        if rng.random() < 0.05:
            rows.append([1] * stages)
        if rng.random() < 0.05:
            row = rng.choice(rows)
            if isinstance(row, list):
                row.pop()
        return rows
    return rng.choice((None, 1, "True", "(2, 1)", ["x"], ["x", "y"], [1, "x"], {"a": 1}, 2.0))


def make_select(rng, *sizes):
    form = rng.random()
    if form < 0.45:
        return {pattern: make_value(rng, *sizes) for pattern in rng.sample(PATTERNS, rng.randint(0, 4))}
    if form < 0.6:
        return rng.sample(PATTERNS, rng.randint(0, 4))
    return make_value(rng, *sizes)


def as_logged(line):
    """MindFormers logs the repr of each name, which doubles its backslashes; the specification does not."""
    return line.replace("\\", "\\\\")


# Rows that upstream happens not to look at, see "Differences".
ROWS_NOT_READ = ("has no count for chunk", "lists for")


def is_refused(result):
    return isinstance(result, tuple) and hasattr(result[0], "rule")


def test_thousands_of_configurations(upstream):
    rng = random.Random(4)
    num_accepted = num_layers = num_differences = 0
    for number in range(NUM_CONFIGURATIONS):
        case = make_case(rng)
        theirs, our = upstream(case), ours(case)
        if isinstance(theirs, Exception):
            assert is_refused(our), (number, case, theirs, our)
        elif is_refused(our):
            assert all(any(text in problem.message for text in ROWS_NOT_READ) for problem in errors(our)), (number, our)
            num_differences += 1
        else:
            num_accepted += 1
            num_layers += case.num_layers
            expected = [line for line in theirs[0] if "_exclude: {}" not in line]
            assert [as_logged(line) for line in our[0]] == expected, (number, case)
            assert our[1] == theirs[1], (number, case)
    # Most of what is made is accepted by both, or nothing would be compared.
    assert num_accepted > NUM_CONFIGURATIONS // 3 and num_layers > 5 * num_accepted
    assert 0 < num_differences < NUM_CONFIGURATIONS // 50


def errors(problems):
    return [problem for problem in problems if problem.level.value == "error"]


# Differences: all that there are between LayerSetting and mindswap.


def case_of(num_layers=4, num_stages=2, offset=0, **recompute):
    sizes = {"num_chunks": 1, "is_interleaved": False, "scheduler": "1f1b", "use_legacy": True}
    return Case(num_layers=num_layers, num_stages=num_stages, offset=offset, recompute=recompute, **sizes)


def test_difference_names_in_the_log_have_their_backslashes_doubled(upstream):
    case = case_of(select_recompute=[r"feed_forward\.mul"])
    assert upstream(case)[0][1] == r"Formative select_recompute: {'feed_forward\\.mul': [[2, 2]]}"
    assert ours(case)[0][1] == r"Formative select_recompute: {'feed_forward\.mul': [[2, 2]]}"


def test_difference_a_short_row_that_upstream_never_reads_is_an_error(upstream):
    """Layers 2 and 3 have no count for `add`. They are fully recomputed, so upstream does not look for it."""
    case = case_of(recompute=[0, 2], select_recompute={"add": [[1]]})
    assert not isinstance(upstream(case), Exception)
    [problem] = errors(ours(case))
    assert problem.message.endswith("has no count for chunk 0, stage 1, where layer 2 is")


def test_difference_an_empty_row_too_many_is_an_error(upstream):
    case = case_of(recompute=[[1, 1], []])
    assert upstream(case)[0][0] == "Formative layer_recompute: [[1, 1], []]"
    [problem] = errors(ours(case))
    assert problem.message.endswith("has 2 lists for 1 chunk")


def test_difference_an_offset_that_numpy_converts_is_an_error(upstream):
    for offset in ([1.5, 0], ["1", 0]):
        case = case_of(num_layers=5, offset=offset)
        assert not isinstance(upstream(case), Exception)
        assert len(errors(ours(case))) == 1


def test_difference_numpy_breaks_long_rows_into_lines(upstream):
    """40 stages: a bool in place of a row is logged as a NumPy array, and those have lines of 75 characters."""
    case = case_of(num_layers=40, num_stages=40, recompute=[True], select_recompute=False)
    case.recompute = {"recompute": [True, [1] * 40]}
    case.num_layers, case.num_chunks, case.is_interleaved = 80, 2, True
    theirs, our = upstream(case)[0][0], ours(case)[0][0]
    assert "\n" in theirs and "\n" not in our
    assert theirs.replace("\n", " ").replace(" ", "") == our.replace(" ", "")


def test_difference_a_negative_count_per_stage_is_an_error():
    """Upstream deals out -1, -2, ... layers and never comes to an end, so it is not asked here."""
    [problem] = errors(ours(case_of(recompute=[-1, 0])))
    assert "loop forever" in problem.message
