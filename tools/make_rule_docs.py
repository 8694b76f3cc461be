"""Write `docs/rules.md` and `docs/rules.zh.md` from the docstrings of the rules.

python tools/make_rule_docs.py            # writes the page
python tools/make_rule_docs.py --check    # exit code 1 if the page is out of date
"""

import argparse
import re
import sys
from pathlib import Path
from textwrap import dedent

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "rules.md"
PAGE_CN = ROOT / "docs" / "rules.zh.md"
sys.path.insert(0, str(ROOT))

from mindswap.config.findings import Rule  # noqa: E402
from mindswap.rules.mindformers1 import find_rules  # noqa: E402 the checkout must be importable, installed or not
from mindswap.rules.mindformers2 import find_rules_2x  # noqa: E402
from tools.rules_cn import CHINESE  # noqa: E402

HEADER = """\
# The rules of `mindswap check`

<!-- Written by tools/make_rule_docs.py from the docstrings in mindswap/rules/mindformers1/: edit those. -->
`mindswap check` prints the name of the rule in brackets at the end of each problem. An error stops
`mindswap run` before training starts, a warning does not. `mindswap: {ignore: [RULE]}` in the YAML, or `--ignore RULE`,
counts the warnings of a rule without printing them.
"""
PYNATIVE_HEADER = """\
# Rules for files of MindFormers 2.x

`mindswap check` uses these for a file with `training` and
`parallelism`, and without `trainer` and `runner_config`. MindFormers 2.1.0 is what they are held against.
"""
READING = {
    "yaml-file": ("the file cannot be opened, or is too large", "文件无法打开，或过大"),
    "yaml-encoding": ("the file is not UTF-8", "文件不是 UTF-8 编码"),
    "yaml-syntax": ("the text is not YAML, or its top level is not a mapping", "不是 YAML，或顶层不是映射"),
    "yaml-tag": ("a tag such as `!!python/object`, which MindFormers refuses", "MindFormers 拒绝的标签"),
    "yaml-key": ("a list or mapping as a key, or keys of several types", "以列表或映射作键，或键的类型不一"),
    "yaml-value": ("a value that PyYAML, and so MindFormers, refuses", "PyYAML（因而 MindFormers）拒绝的值"),
    "yaml-alias": ("an alias without an anchor, or of what it stands in", "别名没有锚点，或指向自身所在的部分"),
    "yaml-merge": ("`<<` with something else than mappings, or too many", "`<<` 后不是映射，或合并过多"),
    "yaml-depth": ("mappings in each other, more than MindFormers takes", "映射嵌套超过 MindFormers 的限制"),
    "base-config": ("a file named by `base_config` cannot be used", "`base_config` 指定的文件不能使用"),
    "rewrite": ("a file that cannot be changed without changing something else", "无法在不影响其他内容时修改的文件"),
    "convert": ("what `mindswap convert` leaves out, changes or refuses", "`mindswap convert` 省去、改变或拒绝的内容"),
    "megatron-options": (
        "options that Megatron-LM refuses, or that have no counterpart",
        "被拒绝或没有对应的选项",
    ),
    "adaptive-exclusion": ("a setting that an adaptive run cannot plan around", "自适应训练无法处理的设置"),
}
READING_HEADER = """\
# While a file is read or written

These words in brackets are no rules: they say why a file cannot be used at all.
"""
HEADER_CN = """\
# `mindswap check` 的规则

<!-- Written by tools/make_rule_docs.py. -->
`mindswap check` 在每条问题末尾的方括号中给出规则名。错误使 `mindswap run` 在
训练开始前停止，警告不会；`mindswap: {ignore: [规则]}` 或 `--ignore` 使警告只计数、不显示。每条规则的详细说明见
[rules.md](rules.md)（英文）。
"""
PYNATIVE_HEADER_CN = """\
# MindFormers 2.x 配置文件的规则

`mindswap check` 对含有 `training` 和 `parallelism`、不含 `trainer` 和 `runner_config` 的文件使用这些规则，
以 MindFormers 2.1.0 为准。
"""
READING_HEADER_CN = """\
# 读写文件时

方括号中的这些词不是规则：它们说明文件为什么完全不能使用。
"""
# `PASS (why): ` and one line, or the indented lines below it.
EXAMPLE = re.compile(r"^(PASS|FAIL)( \(.*\))?:(?: (\S.*)\n?|\n((?: +.*\n?)+))\n?", re.MULTILINE)


def render() -> str:
    """The page."""
    graph, pynative = find_rules(), find_rules_2x()
    parts = [HEADER, _table(graph), *map(_section, graph.values())]
    parts += [PYNATIVE_HEADER, _table(pynative), *map(_section, pynative.values())]
    return "\n".join([*parts, READING_HEADER, _reading(0)])


def render_cn() -> str:
    """The page in Chinese: what each rule finds, and its examples."""
    parts = []
    for header, rules in ((HEADER_CN, find_rules()), (PYNATIVE_HEADER_CN, find_rules_2x())):
        parts += [header, *(_section_cn(rule) for rule in rules.values())]
    return "\n".join([*parts, READING_HEADER_CN, _reading(1)])


def _section_cn(rule: Rule) -> str:
    level = {"error": "错误", "warning": "警告"}[rule.level.value]
    examples = "".join(_example(match) for match in EXAMPLE.finditer(rule.text)).rstrip()
    return f"## {rule.id}\n\n{level}。{CHINESE.get(rule.id, _summary(rule))}\n\n{examples}\n"


def _reading(language: int) -> str:
    return "\n".join(f"- `{name}`: {texts[language]}" for name, texts in READING.items()) + "\n"


def _table(rules: dict[str, Rule]) -> str:
    rows = [f"| [{rule_id}](#{rule_id}) | {rule.level.value} | {_summary(rule)} |" for rule_id, rule in rules.items()]
    return "\n".join(["| rule | level | finds |", "| --- | --- | --- |", *rows, ""])


def _section(rule: Rule) -> str:
    text = EXAMPLE.sub(_example, rule.text).strip()
    return f"## {rule.id}\n\nLevel: {rule.level.value}. {text}\n"


def _example(match: re.Match) -> str:
    verdict, reason, line, block = match.groups()
    return f"{verdict}{reason or ''}:\n\n```yaml\n{line or dedent(block).strip()}\n```\n\n"


def _summary(rule: Rule) -> str:
    return rule.text.partition("\n")[0]


def main() -> int:
    """Write or check the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="compare with the page, write nothing")
    args = parser.parse_args()
    for page, text in ((PAGE, render()), (PAGE_CN, render_cn())):
        name = page.relative_to(ROOT)
        if not args.check:
            page.write_text(text, encoding="utf-8")
            print(f"wrote {name}")
        elif not page.exists() or page.read_text(encoding="utf-8") != text:
            print(f"{name} is out of date\n    fix:     python tools/make_rule_docs.py", file=sys.stderr)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
