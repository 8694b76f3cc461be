from tests.builders import LLAMA_USES, check, found, trees

MODEL = trees(uses=LLAMA_USES)


def config(swap, recompute):
    return f"""
        swap_config:
          swap: True
          op_swap:
            - {{op_name: '{swap}', backward_prefetch: 20, layers: [0, 1]}}
        recompute_config:
          select_recompute: {{'{recompute}': [1, 2]}}
    """


def test_a_recomputed_operator_reads_the_swapped_one():
    text = config(r"feed_forward\.mul", r"feed_forward\.w2")
    assert found(text, MODEL) == [(4, 17, "recomputed-user")]
    message = check(text, MODEL).problems[0].message
    assert "in layer 1 (feed_forward.mul by feed_forward.w2.matmul)" in message
    assert "MindSpore 2.9 inserts the copies" in message


def test_found_below_the_matched_level():
    text = config("attention", r"attention\.flash_attention")
    assert [rule for *_, rule in found(text, MODEL)] == ["recompute-wins", "recomputed-user"]


def test_a_user_that_is_not_recomputed_passes():
    assert found(config(r"feed_forward\.w2", r"feed_forward\.mul"), MODEL) == []


def test_an_operator_that_is_recomputed_itself_is_the_other_rule():
    assert [rule for *_, rule in found(config(r"feed_forward\.mul", "feed_forward"), MODEL)] == ["recompute-wins"]
