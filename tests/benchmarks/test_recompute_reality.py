"""The parts of the benchmark that train nothing: what is read from logs and how rounds are compared."""

import pytest
import yaml

from benchmarks.recompute_reality import (
    VARIANTS,
    DecisionCosts,
    device_overrides,
    format_comparison,
    read_peak_bytes,
    relative_times,
    write_config,
)
from mindswap.config.source import load_document
from mindswap.policy.formats.mindformers1.stage_recompute import expand_stage_recompute
from mindswap.rules.checker import check_document
from mindswap.simulator.cost.device_file import load_device

POOL = "Common mem pool info: Total allocated mem:1024M, peak used mem:{}M, in used mem:0M"


def test_steps_are_compared_with_the_same_round():
    # The machine is three times as slow in the second round; the ratios are 1.5, 1.2 and 1.4.
    rounds = [{"keep": 2.0, "all": 3.0}, {"keep": 6.0, "all": 7.2}, {"keep": 2.0, "all": 2.8}]
    assert relative_times(rounds) == pytest.approx({"keep": 1.0, "all": 1.4})


def test_the_last_report_of_the_pool_counts():
    assert read_peak_bytes(f"x {POOL.format(7)}\nloss\n{POOL.format(501)}, more") == 501 * 2**20


def test_a_log_without_the_pool_is_refused():
    with pytest.raises(ValueError, match="memory pool"):
        read_peak_bytes("Total allocated mem:1024M")


def test_measured_rates_become_figures_of_the_device():
    rates = {"matrix_flops_per_s": 2.5e11, "memory_bytes_per_s": 4e10, "op_latency_s": 7e-6}
    device = load_device("cpu", device_overrides(rates))
    assert device.peak_flops["float32"] == 250 * 10**9
    assert device.memory_bandwidth_bytes_per_s == 40 * 10**9
    assert device.op_latency_ns["matrix"] == device.op_latency_ns["vector"] == 7000


@pytest.mark.parametrize(
    ("name", "layers"), [("keep all", []), ("recompute half", [0, 1, 2, 3]), ("recompute all", list(range(8)))]
)
def test_the_configurations_say_what_their_names_say(tmp_path, name, layers):
    path = write_config(tmp_path, name, VARIANTS[name])
    document = load_document(str(path))
    assert check_document(document).errors == ()
    policy = expand_stage_recompute(document, 8).policy
    assert [layer for layer in range(8) if layer in policy.layer_recompute] == layers
    # Tensors are freed after their last user only at this level.
    assert yaml.safe_load(path.read_text())["context"]["memory_optimize_level"] == "O0"


def test_the_table_shows_both_and_their_difference():
    mib = 2**20
    simulated = {"keep": DecisionCosts(400 * mib, 100.0, 1.0), "all": DecisionCosts(100 * mib, 130.0, 1.3)}
    measured = {"keep": DecisionCosts(500 * mib, 200.0, 1.0), "all": DecisionCosts(150 * mib, 250.0, 1.25)}
    # 100 / 400 = 0.25 against 150 / 500 = 0.3; 1.3 against 1.25
    last = format_comparison(simulated, measured).splitlines()[-1].split()
    assert last == ["all", "100", "150", "0.250", "0.300", "-0.050", "130", "250", "1.300", "1.250", "+0.050"]
