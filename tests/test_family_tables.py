"""The operator tables that ship with the package are what real MindFormers gives."""

import json
from pathlib import Path

import pytest

from tests import forked
from tests.strength import is_nightly
from tools.make_family_tables import expand_outline, make_table

pytestmark = pytest.mark.mindspore

TABLES = {path.stem: path for path in (Path(__file__).resolve().parents[1] / "mindswap/data/families").glob("*.json")}
# A newer model with experts and dense layers, and a legacy one; by day as many variants of them.
BY_DAY = {"deepseek3": 1, "glm2": 2}


def test_there_are_tables_of_these():
    assert set(BY_DAY) < set(TABLES)


@pytest.mark.parametrize("family", sorted(TABLES if is_nightly() else BY_DAY))
def test_the_table_is_up_to_date(family):
    table = expand_outline(json.loads(TABLES[family].read_text()))
    if not is_nightly():
        table["variants"] = table["variants"][: BY_DAY[family]]
    found = make_table(family, lambda words: forked.run(words, check=True).stdout, len(table["variants"]))
    assert found == table
