"""What nodes have in common, and addresses without a cluster. Functions on nodes: features/plan/test_worker_pool.py."""

import pytest

from mindswap.errors import LaunchError
from mindswap.runtime.ray_cluster import connect, refuse, version_mistakes


def test_other_versions_are_named_with_node_and_value():
    here = {"mindswap": "2.0", "mindspore": "2.9.0"}
    refuse(version_mistakes("10.0.0.1", here, here))
    found = version_mistakes("10.0.0.2", {"mindswap": "2.0"}, here)
    assert found == ["node 10.0.0.2: mindspore is none, here it is 2.9.0"]
    with pytest.raises(LaunchError) as error:
        refuse(found)
    assert str(error.value) == f"the nodes do not match; nothing was started\n    {found[0]}"


@pytest.mark.parametrize(
    ("address", "said"),
    [("127.0.0.1:1", "Connection refused"), ("x.invalid:6379", "--ray x.invalid:6379: "),
     ("local", "allowed: auto, or HOST:PORT"), ("ray://127.0.0.1:10001", "allowed: auto, or HOST:PORT"),
     ("10.0.0.1", "allowed: auto, or HOST:PORT"), ("auto", "fix:     ray start --head")],
)  # fmt: skip
def test_without_a_cluster_the_error_says_so_at_once(address, said):
    pytest.importorskip("ray")
    with pytest.raises(LaunchError) as error:
        connect(address)
    assert said in str(error.value)
