"""Write `docs/rules.md` from the docstrings of the rules.

python tools/make_rule_docs.py            # writes the page
python tools/make_rule_docs.py --check    # exit code 1 if the page is out of date
"""

import argparse
import re
import sys
from pathlib import Path
from textwrap import dedent
from types import ModuleType

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "rules.md"
sys.path.insert(0, str(ROOT))

from mindswap.check.rules import find_rules  # noqa: E402 the checkout must be importable, installed or not
from mindswap.mindformers_2x.rules import find_rules as find_pynative_rules  # noqa: E402

HEADER = """\
# The rules of `mindswap check`

Written by `tools/make_rule_docs.py` from the docstrings in `mindswap/check/rules/`; edit those.
`mindswap check` prints the name of the rule in brackets at the end of each problem. An error stops
`mindswap run` before training starts, a warning does not.
"""
PYNATIVE_HEADER = """\
# Rules for files of MindFormers 2.x

From the docstrings in `mindswap/mindformers_2x/rules/`. `mindswap check` uses these for a file with `training` and
`parallelism`, and without `trainer` and `runner_config`. MindFormers 2.1.0 is what they are held against.
"""
# `PASS (why):` and the indented lines below it.
EXAMPLE = re.compile(r"^(PASS|FAIL)(.*):\n((?: +.*\n?)+)", re.MULTILINE)


def render() -> str:
    """The page."""
    graph, pynative = find_rules(), find_pynative_rules()
    parts = [HEADER, _table(graph), *map(_section, graph.values())]
    return "\n".join([*parts, PYNATIVE_HEADER, _table(pynative), *map(_section, pynative.values())])


def _table(rules: dict[str, ModuleType]) -> str:
    rows = [f"| [{rule_id}](#{rule_id}) | {rule.LEVEL.value} | {_summary(rule)} |" for rule_id, rule in rules.items()]
    return "\n".join(["| rule | level | finds |", "| --- | --- | --- |", *rows, ""])


def _section(rule: ModuleType) -> str:
    text = EXAMPLE.sub(_example, _text(rule)).strip()
    return f"## {rule.ID}\n\nLevel: {rule.LEVEL.value}. {text}\n"


def _example(found: re.Match) -> str:
    verdict, reason, code = found.groups()
    return f"{verdict}{reason}:\n\n```yaml\n{dedent(code).strip()}\n```\n"


def _summary(rule: ModuleType) -> str:
    return _text(rule).partition("\n")[0]


def _text(rule: ModuleType) -> str:
    return (rule.__doc__ or "").strip() + "\n"


def main() -> int:
    """Write or check the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="compare with the page, write nothing")
    args = parser.parse_args()
    if not args.check:
        PAGE.write_text(render(), encoding="utf-8")
        print(f"wrote {PAGE.relative_to(ROOT)}")
    elif not PAGE.exists() or PAGE.read_text(encoding="utf-8") != render():
        print("docs/rules.md is out of date\n    fix:     python tools/make_rule_docs.py", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
