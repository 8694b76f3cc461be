"""What MindFormers does when it loads a file: what it stops at is an error, however harmless it looks.

Source: `MindFormerConfig._file2dict` and `check_yaml_depth_before_loading` of mindformers 1.9.0: `yaml.compose`, at
most 10 mappings in each other, `yaml.safe_load`, and the top level sorted by key.
"""

from typing import cast

import yaml

from mindswap.config.nodes import children_first
from mindswap.config.problem import Level, Location, Problem

LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
# PyYAML's own loader, which MindFormers uses, is stricter (about tabs, say) and takes a second for 200 KB.
MAX_CHARS_OF_SLOW_LOADER = 64 * 1024
MAX_MAPPING_DEPTH = 10


def loader_for(text: str) -> type:
    """The loader that reads a text as MindFormers does; of large texts the fast one, whose grammar is a bit wider."""
    return yaml.SafeLoader if len(text) <= MAX_CHARS_OF_SLOW_LOADER else LOADER


def find_load_problem(text: str, file: str) -> Problem | None:
    """Why MindFormers could not load a text that `parse_document` reads without a problem; None if it can."""
    loader = LOADER(text)  # its grammar is good: that was read before
    try:
        node = cast(yaml.Node, loader.get_single_node())  # None only for an empty document
        too_deep = _deepest(node)
        if too_deep is not None:
            depth, place = too_deep
            message = f"{depth} nested mappings, and MindFormers refuses the file"
            return _problem(file, place, "yaml-depth", message, f"at most {MAX_MAPPING_DEPTH}")
        data = loader.construct_document(node)
        sorted(data.items())
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        reason = error.problem or error.context
        return _problem(file, mark, "yaml-value", f"PyYAML, and so MindFormers, refuses the file: {reason}")
    except TypeError:
        first = node.value[0][0]
        key = next((key for key, _ in node.value if key.tag != first.tag), first)
        message = "keys of the top level are of different types, and MindFormers sorts them"
        return _problem(file, key.start_mark, "yaml-key", message, "strings")
    except (AttributeError, ValueError, yaml.YAMLError) as error:
        return _problem(file, None, "yaml-value", f"PyYAML, and so MindFormers, refuses the file: {error}")
    finally:
        loader.dispose()
    return None


def _deepest(node: yaml.Node) -> tuple[int, yaml.Mark] | None:
    """Depth and place of the innermost mapping where there are too many in each other; lists in between end a chain."""
    depth_of: dict[int, int] = {}
    for current in children_first(node, _mappings_in):
        depth_of[id(current)] = 1 + max((depth_of[id(value)] for value in _mappings_in(current)), default=0)
    depth = depth_of[id(node)]
    if depth <= MAX_MAPPING_DEPTH:
        return None
    for _ in range(depth - 1):
        node = max(_mappings_in(node), key=lambda value: depth_of[id(value)])
    return depth, node.start_mark


def _mappings_in(node: yaml.Node) -> list[yaml.Node]:
    return [value for _, value in node.value if isinstance(value, yaml.MappingNode)]


def _problem(file: str, mark: yaml.Mark | None, rule: str, message: str, allowed: str = "") -> Problem:
    place = Location(file, mark.line + 1, mark.column + 1) if mark is not None else Location(file, 1, 1)
    return Problem(place, rule, Level.ERROR, message, allowed)
