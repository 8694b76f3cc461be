"""Plot of a dry run."""

import pytest

from mindswap.features.dryrun.memory_pool import DryRun, PoolBlock
from mindswap.features.dryrun.plots import plot_dry_run
from mindswap.features.dryrun.stage_runs import DryRunReport, stage_run
from tests.report.simulated import small_report


@pytest.mark.parametrize("simulated", [small_report(), None])
def test_parts_of_both_sides_are_drawn_with_their_names(simulated, tmp_path):
    pytest.importorskip("matplotlib")
    blocks = (PoolBlock(1, 9, 2**20, "Weight", "wq.weight", 0, -1), PoolBlock(2, 5, 2**20, "ConstantValue", "c", 0, -1))
    run = DryRun(0, 2**21, 2**21, blocks, {2: "Default/network/Mul-op0", 5: "Gradients/Default/x/Mul-op1"}, (), (), 0.0)
    path = tmp_path / "plot.svg"
    plot_dry_run(DryRunReport("case", (stage_run(0, 1, {1: run}),), simulated, 1, (1,), None, False), path)
    text = path.read_text()
    shown = [title for title in ("weights", "constants", "saved activations") if f"<!-- {title} -->" in text]
    assert shown == ["weights", "constants", *(["saved activations"] if simulated else [])]
