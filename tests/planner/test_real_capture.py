"""The fast solver against every choice there is, on layers that were really captured."""

from dataclasses import replace

import numpy as np
import pytest
from reference.exact import enumerate_all

from mindswap.planner.catalog import Catalog, build_catalog
from mindswap.planner.layer_assignments import LayerAssignments
from mindswap.planner.solver.fast import solve
from mindswap.planner.solver.search import Search
from mindswap.planner.step_problem import SingleStageProblem
from tests.adapters.graphs import ROOT
from tests.planner.loading import capture_apart
from tests.strength import is_nightly

pytestmark = pytest.mark.mindspore

NUM_ITEMS = 3 if is_nightly() else 2  # of each layer; with 2 layers some hundred choices, nightly ten thousand
DISTANCES = (2, 16, 40) if is_nightly() else (2, 40)  # of 45 operators that a layer has in forward


@pytest.fixture(scope="module")
def two_layers(tmp_path_factory):
    """Llama2-7B with 2 layers."""
    text = (ROOT / "configs" / "llama2_7b" / "pretrain_llama2_7b.yaml").read_text("utf-8")
    folder = tmp_path_factory.mktemp("capture")
    (folder / "two.yaml").write_text(text.replace("num_layers: 32", "num_layers: 2"), "utf-8")
    return capture_apart(folder / "two.yaml")


def restrict(catalog: Catalog, kept: list[int]) -> Catalog:
    """Only these items can be chosen."""
    freed = np.zeros_like(catalog.freed_bytes)
    freed[:, kept] = catalog.freed_bytes[:, kept]
    return replace(catalog, freed_bytes=freed)


@pytest.mark.parametrize("part", ["largest", "smallest"])
@pytest.mark.parametrize("share_percent", [25, 60, 90])
def test_within_a_percent_of_the_optimum(two_layers, part, share_percent):
    """Budgets that take away a part of what the items can free: little, more than half, nearly all."""
    whole = build_catalog(two_layers)
    sizes = whole.freed_bytes[0].max(axis=1)
    order = [
        int(group) for group in np.argsort(-sizes, kind="stable") if group > 0 and sizes[group] > 0
    ]  # 0: the layer
    catalog = restrict(whole, order[:NUM_ITEMS] if part == "largest" else order[-NUM_ITEMS:])
    unlimited = SingleStageProblem(LayerAssignments(two_layers, catalog), 0, 1 << 50, 1 << 50)
    shape = (unlimited.costs.num_layers, unlimited.costs.num_groups)
    keep = Search(unlimited, 1).score(np.zeros(shape, np.int64))
    most = catalog.freed_bytes.max(axis=2).sum()
    budget = int(keep.peak_bytes - most * share_percent // 100)

    exact = enumerate_all(
        SingleStageProblem(LayerAssignments(two_layers, catalog), 0, budget, 1 << 50), distances=DISTANCES
    )
    fast = solve(SingleStageProblem(LayerAssignments(two_layers, catalog), 0, budget, 1 << 50))
    assert exact.num_evaluations > 1
    if exact.best_score.fits:
        assert fast.best_score.fits
        assert fast.best_score.step_time_ns <= exact.best_score.step_time_ns * 1.01
    else:  # the items free less together than each alone
        assert fast.best_score.peak_bytes <= exact.best_score.peak_bytes * 1.01
