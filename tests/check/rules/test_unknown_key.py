from tests.builders import check, found


def test_unknown_keys_are_found_at_every_level():
    text = """
        swap_config:
          swap: True
          default_prefech: 10
          layer_swap:
            - {backward_prefetch: 20, layers: [0], layer: 3}
        recompute_config:
          recompute: False
          select_recomput: True
    """
    assert found(text) == [(3, 3, "unknown-key"), (5, 44, "unknown-key"), (8, 3, "unknown-key")]


def test_the_closest_key_is_the_fix():
    assert check("swap_config: {swap: True, default_prefech: 10}").problems[0].fix == "write 'default_prefetch'"
    assert check("swap_config: {swap: True, something_else: 10}").problems[0].fix == "delete it"


def test_a_misspelt_section_is_a_warning_only():
    result = check("swap_cfg: {swap: True}")
    assert [(p.rule, p.level.value) for p in result.problems] == [("unknown-key", "warning")]


def test_other_top_level_keys_are_no_concern():
    assert found("{swap_config: {swap: True}, context: {mode: 0}, my_swap: 3}") == []


def test_with_swap_off_nothing_is_an_error():
    assert found("{swap_config: {swap: False, junk: 1}}") == [(1, 29, "swap-off")]
