"""A swap never changes a number, whatever the user's code does with activations outside of their layers."""

import pytest

from tests.strength import examples

pytestmark = pytest.mark.mindspore


def test_networks_made_at_random_train_to_the_same_bits():
    from tests.adapters.pynative import attack

    wrong, moved_bytes = attack.attack(range(examples(8, 300)))
    assert wrong == []
    assert moved_bytes > 0
