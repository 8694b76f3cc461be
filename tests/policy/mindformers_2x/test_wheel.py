"""The configurations that MindFormers ships; they are not ours to commit, so this runs where they are unpacked."""

import os
from pathlib import Path

import pytest

from mindswap.check.check import check_document, check_pynative
from mindswap.config.source import load_document
from mindswap.policy.mindformers_2x.tables import Form, find_form

WHEEL = os.environ.get("MINDFORMERS_2X_WHEEL", "")
FILES = sorted(Path(WHEEL, "configs").rglob("*.yaml")) if WHEEL else []


@pytest.mark.skipif(not WHEEL, reason="MINDFORMERS_2X_WHEEL names no unpacked mindformers 2.1.0 wheel")
def test_no_false_alarm_in_the_files_of_the_wheel():
    documents = [load_document(path) for path in FILES]
    pynative = [document for document in documents if find_form(document) is Form.PYNATIVE]
    assert (len(documents), len(pynative)) == (31, 5)
    assert [problem for document in pynative for problem in check_pynative(document).problems] == []
    # Nothing in the other files is taken for a section of 2.x.
    others = [document for document in documents if find_form(document) is Form.GRAPH]
    found = [problem.rule for document in others for problem in check_document(document).problems]
    assert "section-of-2x" not in found and "form-2x" not in found
