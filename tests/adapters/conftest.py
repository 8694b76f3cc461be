import pydoc_data.topics

import pytest

from tests import forked


@pytest.fixture(scope="session")
def data(tmp_path_factory):
    """Samples of 65 byte tokens from CPython's own help texts."""
    folder = tmp_path_factory.mktemp("data")
    (folder / "text.txt").write_text("\n\n".join(pydoc_data.topics.topics.values())[:20_000])
    command = ("-m", "mindswap", "prepare-data", "text.txt", "--output", "text.mindrecord", "--seq-length", "64")
    forked.run(command, cwd=folder, check=True)
    return folder / "text.mindrecord"
