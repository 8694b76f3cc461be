"""What the driver makes of the answers of its nodes; the nodes themselves are written down here."""

import time
from pathlib import Path

import pytest

from mindswap.runtime.attempt.checkpoints import SavedStep
from mindswap.runtime.attempt.model import Ended, Outcome
from mindswap.runtime.attempt.node import MAX_CLOCK_S, NodeFacts, NodeTask, TrainingNode, node_mistakes
from mindswap.runtime.attempt.nodes import Nodes
from mindswap.runtime.attempt.watch import LogProgress
from mindswap.runtime.logs.oom import OomEvent
from mindswap.runtime.ray_cluster import NodeLostError


class Answered(Nodes):
    """Nodes with these answers, by method and rank; an error is raised."""

    def __init__(self, **answers):
        super().__init__(None)
        self.answers, self.asked = answers, []

    def ask(self, method, arguments=lambda _: (), ranks=None):
        answers = self.answers[method]
        if isinstance(answers, Exception):
            raise answers
        chosen = range(len(answers)) if ranks is None else ranks
        self.asked += [(method, rank, *arguments(rank)) for rank in chosen]
        return [answers[rank] for rank in chosen]

    def name_of(self, rank):
        return f"node {rank}"


def seen(step=0, out_of_memory=None):
    return LogProgress(step, 40, 0, 0, None, out_of_memory, 0)


def test_the_newest_checkpoint_is_one_of_all():
    first, second, third = ((SavedStep(step, 1), "x", "ckpt") for step in (4, 6, 8))
    found = frozenset({first, second, third}), frozenset({first, second})
    assert Answered(complete=found).newest(("a",)) == second
    assert Answered(complete=(*found, frozenset())).newest(()) is None


def test_marks_of_all_nodes_are_one_list():
    assert Answered(marks=(("b", "a"), ("b", "c"))).marks() == ("a", "b", "c")


def test_the_port_is_chosen_where_the_scheduler_runs():
    nodes = Answered(choose_port=(9000, 9001))
    assert nodes.choose_port(may_differ=True) == 9000
    assert nodes.asked == [("choose_port", 0, "127.0.0.1", True)]


def test_the_start_takes_until_the_first_step_and_steps_are_never_lost():
    nodes = Answered(open=(None,), look=[seen()])
    nodes.open(1)
    nodes.look()
    assert (nodes.step, nodes.startup_s) == (0, 0)
    time.sleep(0.02)
    nodes.answers["look"] = [seen(2)]
    nodes.look()
    startup_s = nodes.startup_s
    assert nodes.step == 2 and 0.02 <= startup_s < 60
    nodes.answers["look"] = [seen(1)]  # a log that was taken away
    nodes.look()
    assert (nodes.step, nodes.startup_s) == (2, startup_s)
    nodes.open(2)
    assert (nodes.step, nodes.startup_s) == (0, 0)


@pytest.mark.parametrize(
    ("ended", "is_over"),
    [([None, None], False), ([True, None], False), ([False, None], True), ([True, True], True), ([True, False], True)],
)
def test_one_node_that_ended_badly_is_the_end(ended, is_over):
    assert Answered(ended=ended).is_over() is is_over


def ending(ended, explained, memory=None):
    """What the nodes say of their end, behind step 7."""
    nodes = Answered(ended=ended, explain=explained, look=[seen(7, memory)])
    nodes.is_over()
    return nodes.explain(), [rank for method, rank, *_ in nodes.asked if method == "explain"]


def test_only_nodes_that_ended_badly_say_why():
    killed = Ended(Outcome.KILLED, 3, "worker 2 was killed")
    event, asked = ending([None, False], [None, killed])
    assert asked == [1] and event == Ended(Outcome.KILLED, 7, "worker 2 was killed on node 1")


def test_where_all_ended_well_all_are_asked():
    event, asked = ending([True, True], [Ended(Outcome.FINISHED, 3), Ended(Outcome.FINISHED, 4)])
    assert asked == [0, 1] and event == Ended(Outcome.FINISHED, 7)


def test_a_report_names_its_node_above_it():
    event, _ = ending([False, False], [Ended(Outcome.FAILED, 1, "    a", 3), Ended(Outcome.FAILED, 1, "    b", 4)])
    assert event == Ended(Outcome.FAILED, 7, "    on node 0:\n    a", 3)


def test_want_of_memory_on_another_node_is_why_a_peer_failed():
    """Its msrun has not ended yet; where all ended well, or the node says it itself, nothing else counts."""
    memory = 5, OomEvent("form", "not enough", requested_bytes=400)
    failed = Ended(Outcome.FAILED, 1, "lost its peer")
    event, _ = ending([False, None], [failed, None], memory)
    assert event == Ended(Outcome.OUT_OF_MEMORY, 7, "not enough", worker=5, missing_bytes=400)
    event, _ = ending([True, True], [Ended(Outcome.FINISHED, 7)] * 2, memory)
    assert event.outcome is Outcome.FINISHED
    own = Ended(Outcome.OUT_OF_MEMORY, 7, "own", worker=1)
    assert ending([False, None], [own, None], memory)[0].text == "own on node 0"


def test_full_disks_have_their_node_and_lost_nodes_have_none():
    nodes = Answered(full_disks=(("/a: full",), (), ("/b: full", "/c: full")))
    assert nodes.full_disks() == ("node 0: /a: full", "node 2: /b: full", "node 2: /c: full")
    lost = Answered(full_disks=NodeLostError("x"), stop_all=NodeLostError("x"), close=NodeLostError("x"))
    lost.stop_all()
    lost.close()
    assert lost.full_disks() == ()


def test_a_clock_may_be_off_by_the_limit():
    config = Path("c.yaml")
    for offset_s, number in ((MAX_CLOCK_S, 0), (-MAX_CLOCK_S, 0), (MAX_CLOCK_S + 0.1, 1), (-MAX_CLOCK_S - 0.1, 1)):
        facts = NodeFacts("a", config={}, clock_offset_s=offset_s)
        assert len(node_mistakes([facts], config, NodeFacts("here", config={}))) == number


def test_a_node_writes_the_files_that_it_has_not_got(tmp_path):
    """One of another size is written again, one of the same is taken for the same."""
    working = tmp_path / "w"
    paths = [working / name for name in ("new", "other", "same")]
    working.mkdir()
    paths[1].write_bytes(b"longer")
    paths[2].write_bytes(b"SAME")
    task = NodeTask(None, tmp_path, tmp_path, working, True, files=dict.fromkeys(paths, b"same"))
    TrainingNode(task).close()
    assert [path.read_bytes() for path in paths] == [b"same", b"same", b"SAME"]
