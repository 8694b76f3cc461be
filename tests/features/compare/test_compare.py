"""Names that are compared: files, and baselines behind the first of them."""

import pytest

from mindswap.errors import PolicyError, SimulationError
from mindswap.features.compare import compare_configs

WRONG = "swap_config: {swap: True, default_prefetch: 0}\n"


@pytest.fixture
def config(tmp_path):
    """A file that ends with an error of its own as soon as it is read."""
    (tmp_path / "x.yaml").write_text(WRONG)
    return str(tmp_path / "x.yaml")


@pytest.mark.parametrize("others", [[], ["none"], ["none", "full-recompute"]])
def test_files_and_baselines_are_taken(config, others):
    with pytest.raises(PolicyError):
        compare_configs([config, *others])


@pytest.mark.parametrize("names", [["nix.yaml"], ["x.yaml", "nix"], ["x.yaml", "none", "nix"]])
def test_what_is_neither_is_named_before_anything_is_read(config, names):
    names = [config if name == "x.yaml" else name for name in names]
    with pytest.raises(SimulationError, match=f"'{names[-1]}' is neither a file nor a baseline; baselines are none, "):
        compare_configs(names)


def test_a_baseline_needs_a_configuration_before_it(config):
    with pytest.raises(SimulationError, match="'none' is a baseline: name a configuration before it"):
        compare_configs(["none", config])
