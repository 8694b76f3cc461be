"""Problems of a 2.x text, found against the toy model of `cases.py`."""

from mindswap.config.parse import parse_document
from mindswap.policy.formats.mindformers2.tables import Model, paths_from_outline
from mindswap.rules.checker import PynativeCheck, check_pynative
from tests.policy.formats.mindformers2.cases import HEADER, OUTLINE

__all__ = ["MODEL", "check_2x", "found_2x"]

# Four layers of the toy model.
MODEL = Model((paths_from_outline(OUTLINE),) * 4, "the toy model")


def check_2x(sections: str, header: str = HEADER, model: Model | None = MODEL, mindformers: str = "") -> PynativeCheck:
    """Check sections behind a header of three lines."""
    document = parse_document(f"{header}{sections}\n".encode(), "x.yaml")
    return check_pynative(document, model=model, mindformers=mindformers)


def found_2x(sections: str, header: str = HEADER, model: Model | None = MODEL) -> list[tuple[int, int, str]]:
    """Line (the first line of the sections is 1), column and rule of every problem."""
    lines = header.count("\n")
    problems = check_2x(sections, header, model).problems
    return [(p.location.line - lines, p.location.column, p.rule.removeprefix("pynative-")) for p in problems]
