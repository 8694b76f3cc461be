import pytest

from mindswap import cli
from mindswap.runtime.attempt.model import Attempt, Corrections, Outcome, Settings, State, TrainingPlan
from mindswap.runtime.attempt.state import StateFile
from tests.schema import answer_of

GIB = 1 << 30
MS = 1_000_000
PLANS = [
    TrainingPlan(f"p{i}", "", budget * GIB, peak * GIB, 500 * MS)
    for i, (budget, peak) in enumerate([(54, 53), (50, 49)])
]
STATE = State(
    Settings(54 * GIB),
    (
        Attempt(1, PLANS[0], 0, 9, 40, Outcome.OUT_OF_MEMORY, "worker 3: ..."),
        Attempt(2, PLANS[1], 5, 40, 40, Outcome.FINISHED, "", 0, 50 * GIB, 510 * MS),
    ),
    Corrections(GIB, 980),
    ("p0",),
    limit_bytes=50 * GIB,
    exit_reason="the training finished",
)
TEXT = """\
attempt  plan    budget  predicted peak  measured  predicted step  measured    steps  lost          ended
-------  ----  --------  --------------  --------  --------------  --------  -------  ----  -------------
1          p0  54.0 GiB        53.0 GiB                    500 ms             0-9/40     4  out of memory
2          p1  50.0 GiB        49.0 GiB  50.0 GiB          500 ms    510 ms  5-40/40     0       finished

restarts: 1 of 8 allowed, 4 steps repeated; memory 54.0 GiB, budget now 51.0 GiB
corrections of the model: peak +1.0 GiB, compute 0.98 x, links 1.00 x
excluded (out of memory): p0 (out of memory)
predicted figures are simulated
the training finished
"""


@pytest.fixture
def folder(tmp_path):
    StateFile(tmp_path).save(STATE, "key")
    return str(tmp_path)


def test_a_run_that_ended(folder, capsys):
    assert cli.main(["status", folder]) == 0
    assert capsys.readouterr().out == TEXT


def test_for_machines(folder, capsys):
    assert cli.main(["status", "--json", folder]) == 0
    data = answer_of(capsys.readouterr().out)
    assert (data["restarts"], data["steps_lost"], data["at_work"]) == (1, 4, False)
    assert data["attempts"][1]["measured_peak_bytes"] == 50 * GIB


def test_no_run(tmp_path, capsys):
    (tmp_path / "file").touch()
    for place in (tmp_path, tmp_path / "file"):
        assert cli.main(["status", str(place)]) == 1
        assert "no adaptive run here" in capsys.readouterr().err


def test_a_damaged_state(folder, tmp_path, capsys):
    (tmp_path / "adaptive/state.json").write_text("{")
    assert cli.main(["status", folder]) == 1
    assert "is no state of an adaptive run" in capsys.readouterr().err
