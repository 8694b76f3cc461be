import pytest

from mindswap.config.limits import GRAPH_LIMITS
from mindswap.config.problem import Level
from mindswap.config.render import document_from_data
from mindswap.rules.checker import check_document


@pytest.mark.parametrize(
    ("section", "key"), [(section, key) for section, limit_of in GRAPH_LIMITS.items() for key in limit_of]
)
def test_each_number_has_a_limit_also_in_a_list(section, key):
    largest = GRAPH_LIMITS[section][key].largest

    def messages(value):
        data = {key: value}
        for name in reversed(section):
            data = {name: data}
        found = check_document(document_from_data({"swap_config": {"swap": True}, **data}, "x.yaml")).problems
        return [(p.level, p.allowed) for p in found if p.rule == "too-large"]

    assert messages(largest) == []
    assert messages(largest + 1) == [(Level.ERROR, f"at most {largest}")]
    assert messages([1, largest + 1]) == [(Level.ERROR, f"at most {largest}")]
