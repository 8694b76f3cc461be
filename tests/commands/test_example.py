"""`mindswap example`: what it writes is a file of configs/, for one process."""

from pathlib import Path

import yaml

from mindswap import cli
from mindswap.commands.example import NUM_CHARACTERS

CASE_3 = Path(__file__).parents[2] / "configs" / "llama2_7b" / "cpu" / "case3_op_swap.yaml"


def test_the_files_are_good_and_what_is_there_stays(tmp_path, capsys):
    folder = tmp_path / "trial"
    assert cli.main(["example", str(folder)]) == 0
    assert f"cd {folder}\n" in capsys.readouterr().out
    written, case_3 = (yaml.safe_load(path.read_text("utf-8")) for path in (folder / "llama2_small.yaml", CASE_3))
    case_3["use_parallel"], case_3["parallel_config"]["data_parallel"] = False, 1
    assert written == case_3
    assert len((folder / "text.txt").read_text("utf-8")) == NUM_CHARACTERS
    assert cli.main(["check", str(folder / "llama2_small.yaml")]) == 0
    (folder / "llama2_small.yaml").unlink()
    assert cli.main(["example", str(folder)]) == 1  # the text is there, so nothing is written
    assert "text.txt" in capsys.readouterr().err and not (folder / "llama2_small.yaml").exists()
