"""Chinese messages: every text has a translation with its placeholders and the terms of the glossary."""

import importlib.util
import json
import re
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from mindswap import language
from mindswap.cli import COMMANDS, main
from mindswap.config.parse import parse_document
from mindswap.language import CATALOGUE, Catalogue, display_width, read_entries
from mindswap.report.tables import format_table
from mindswap.rules.checker import check_document, check_pynative
from mindswap.rules.mindformers1 import find_rules
from mindswap.rules.mindformers2 import find_rules_2x
from mindswap.system.children import ask
from tests.rules.refusal_cases import MODULES, OTHERS, read_cases
from tests.test_glossary import REPLACED, rows

ROOT = Path(__file__).parents[1]
ENTRIES = list(read_entries(CATALOGUE.read_text("utf-8")))
PLACEHOLDER = re.compile(r"\{\d+\}")
# Words of an English sentence; a command line is none.
ENGLISH = re.compile(r"(?<![\w./])[a-z]{2,} [a-z]{2,}(?![\w./])")
COMMAND_LINE = r"(mindswap|docker|ulimit|--[a-z-]+) [^；]*"
NAMES = r"\bdry run\b|rotary cos"
# Terms that are also other words: `mindswap plan`, the rule `overlap`, the kernel of the system.
AMBIGUOUS = {"plan", "overlap", "kernel"}
# Texts with a word of the glossary in another meaning: an activation function, a cell of a table, a script.
OTHER_MEANING = ("no such activation", "activation functions", "shards them", "added to every cell", "own entry")


def load_tool(name):
    spec = importlib.util.spec_from_file_location(name, ROOT / "tools" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


TOOL = load_tool("messages")
EXAMPLE = load_tool("make_rule_docs").EXAMPLE


@pytest.fixture(autouse=True)
def english_afterwards():
    yield
    language.set_language({})


@pytest.fixture
def chinese():
    language.set_language({"MINDSWAP_LANG": "zh"})
    return Catalogue(CATALOGUE.read_text("utf-8"))


def test_every_text_has_a_translation():
    translated = {english for context, english, chinese in ENTRIES if context is None and chinese}
    texts = TOOL.all_texts()
    assert len(texts) > 1500
    assert [text for text in texts if text not in translated] == [], "see tools/messages.py"
    assert translated <= set(texts), "python tools/messages.py drops what is gone"


def test_every_text_of_help_has_a_translation():
    translated = {english for context, english, chinese in ENTRIES if context == language.HELP and chinese}
    texts = TOOL.help_texts()
    assert len(texts) > 150
    assert texts - translated == set(), "see tools/messages.py"
    assert translated - texts == set(), "python tools/messages.py drops what is gone"


def test_translations_have_the_same_placeholders():
    assert [
        (english, chinese) for _, english, chinese in ENTRIES
        if sorted(PLACEHOLDER.findall(english)) != sorted(PLACEHOLDER.findall(chinese))
    ] == []  # fmt: skip


def test_translations_have_the_terms_of_the_glossary():
    num_found, wrong = 0, []
    for english, chinese, _ in rows("glossary.md"):
        term, forms = re.sub(r" ?\(.*?\)", "", english), [form for form in re.split("[（）、]", chinese) if form]
        pattern = re.compile(rf"\b{re.escape(term)}s?\b", re.IGNORECASE)
        for context, text, translation in ENTRIES:
            is_exempt = term in AMBIGUOUS or context or text == translation or any(w in text for w in OTHER_MEANING)
            if is_exempt or not pattern.search(text):
                continue
            num_found += 1
            if not any(form in translation for form in forms) and not pattern.search(translation):
                wrong.append((term, text, translation))
    assert num_found > 300 and wrong == []
    assert [(word, text) for _, _, text in ENTRIES for word in REPLACED if word in text] == []


def test_the_glossary_has_the_labels_as_they_are_printed(chinese):
    """The pages show English outputs: a Chinese reader finds the words of the screen in this table."""
    table = (ROOT / "docs" / "glossary.zh.md").read_text("utf-8").partition("## 输出中的标签")[2]
    labels = [[cell.strip() for cell in line.split("|")[1:3]] for line in table.splitlines() if line.startswith("| ")][
        2:
    ]
    assert len(labels) > 60
    printed = [[english, chinese.labels.get(english) or chinese.translate_cell(english)] for english, _ in labels]
    assert labels == printed


@pytest.mark.skipif(shutil.which("msgfmt") is None, reason="no gettext here")
def test_the_catalogue_is_one_of_gettext(tmp_path):
    done = subprocess.run(["msgfmt", "--check-format", "-o", tmp_path / "x.mo", CATALOGUE], capture_output=True)
    assert done.returncode == 0, done.stderr


def problems_of_examples():
    for rules, check in ((find_rules(), check_document), (find_rules_2x(), check_pynative)):
        for rule in rules.values():
            for example in EXAMPLE.finditer(rule.text):
                text = (example[3] or textwrap.dedent(example[4])).strip()
                yield from check(parse_document(text, "x.yaml")).problems
    for module in (*MODULES, OTHERS):
        for case in read_cases(module):
            yield from check_document(parse_document(case.text.replace("@", ""), "x.yaml")).problems


def test_problems_of_all_rules_are_in_chinese(chinese):
    problems = list(problems_of_examples())
    assert len(problems) > 350
    assert [p.message for p in problems if not re.search("[一-鿿]", chinese.translate_line(p.message))] == []
    # A fix may be YAML or a command; a sentence is left in neither.
    lines = [chinese.translate_line(text) for p in problems if p.rule != "bad-ignore" for text in (p.allowed, p.fix)]
    words = re.compile(r"\b(the|is|are|of|with|which|has|have|no|not|without|takes|needs|delete|write|more)\b")
    assert [line for line in lines if words.search(re.sub(r"`.*?`|'.*?'|\(.*?\)", "", line))] == []


def test_check_prints_chinese_and_json_stays_english(monkeypatch, capsys):
    monkeypatch.setenv("MINDSWAP_LANG", "zh")
    path = str(ROOT / "docs" / "mistakes.yaml")
    assert main(["check", path]) == 1
    shown = capsys.readouterr().out.splitlines()
    assert f"{path}:4:26: 错误: context.memory_optimize_level：'O1'，但 SWAP 需要 O0 [memory-optimize-level]" in shown
    assert "    允许：   0 到 3（num_layers: 4）" in shown
    assert shown[-1] == "4 个错误，1 个警告；按 MindFormers 1.9（静态图模式）读取"
    assert main(["check", "--json", path]) == 1
    data = json.loads(capsys.readouterr().out)
    assert data["problems"][0]["message"] == "context.memory_optimize_level: 'O1', but swap needs O0"
    assert main(["convert", "--to", "index", path]) == 1
    assert "错误: swap_config.swap：SWAP 已打开" in capsys.readouterr().err


def test_errors_are_in_chinese(monkeypatch, capsys):
    monkeypatch.setenv("MINDSWAP_LANG", "zh")
    assert main(["check", "--ignore", "nonsense", str(ROOT / "docs" / "mistakes.yaml")]) == 1
    assert "没有这条规则" in capsys.readouterr().err


def test_child_processes_print_chinese_but_for_those_that_are_read(monkeypatch):
    language.set_language({"LANG": "zh_CN.UTF-8"})
    code = "from mindswap.system.streams import print_text; print_text('nothing fits')"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "都装不下\n"
    monkeypatch.setenv("MINDSWAP_LANG", "zh")
    answer = ask(["check", "--json", "--ignore", "nonsense", str(ROOT / "docs" / "mistakes.yaml")])
    assert answer.error.startswith("--ignore nonsense: there is no such rule")


@pytest.mark.parametrize(
    ("environ", "is_chinese"),
    [
        ({}, False),
        ({"LANG": "zh_CN.UTF-8"}, True),
        ({"LANG": "zh_CN.UTF-8", "LC_ALL": "C"}, False),
        ({"LANG": "en_US.UTF-8", "MINDSWAP_LANG": "zh"}, True),
        ({"LANG": "zh_CN.UTF-8", "MINDSWAP_LANG": "en"}, False),
        ({"LC_MESSAGES": "zh_TW", "LANG": "C"}, True),
    ],
)
def test_the_variable_or_the_locale_decides(environ, is_chinese):
    assert language.wants_chinese(environ) == is_chinese


def test_english_reads_no_catalogue(monkeypatch):
    monkeypatch.setattr(language, "_load_catalogue", pytest.fail)
    language.set_language({"LANG": "zh_CN", "LC_ALL": "C"})
    assert language.translate("nothing fits") == "nothing fits"


@pytest.mark.parametrize(
    ("english", "expected"),
    [
        ("with states on the card no plan found fits", "状态在卡上时没有找到装得下的方案"),
        ("     17.8 ms  offload (D2H) of ffn.rcast, layers 1-2", "     17.8 ms  ffn.rcast 的卸载（D2H），第 1-2 层"),
        ("rank 0, peak: backward, after the layers: Mul-op0", "rank 0，峰值：反向，各层之后：Mul-op0"),
        ("swapped attention.mul: 2 B float16[1, 32], prefetch 10", "卸载 attention.mul：2 B float16[1, 32]，预取 10"),
        ("[layers 0-1, 4] (x3) on stages 0-1", "[第 0-1, 4 层]（x3），位于 stage 0-1"),
        ("[   0 s] preparing stand-ins for CANN's libraries", "[   0 s] 准备 CANN 桩库"),
    ],
)
def test_a_line_is_translated_in_full_or_not_at_all(chinese, english, expected):
    """Placeholders that a blank separates, a gap of columns, a clause before a known word, seconds before a line."""
    assert chinese.translate_line(english) == expected


@pytest.mark.parametrize("arguments", [["--help"], *([name, "--help"] for name in COMMANDS)], ids=" ".join)
def test_help_is_in_chinese(monkeypatch, capsys, arguments):
    """Every text of the parsers is in the catalogue, and no line is wider than a terminal."""
    monkeypatch.setenv("MINDSWAP_LANG", "zh")
    monkeypatch.setenv("COLUMNS", "80")
    assert main(arguments) == 0
    _, *paragraphs = capsys.readouterr().out.split("\n\n")
    shown = "\n\n".join(paragraphs)
    assert "位置参数:\n" in shown and "显示此帮助并退出" in shown
    options = shown.partition("示例：")[0].splitlines()[2:]
    assert [line for line in options if display_width(line) > 80] == []
    words = re.compile(r"\b(the|is|are|of|with|which|has|have|not|without|takes|needs|write|more)\b")
    assert [line for line in shown.splitlines() if words.search(re.sub(r"`.*?`|'.*?'|\[.*?\]", "", line))] == []


def examples_of_pages():
    """Return the lines that the pages show of the output of commands with Chinese messages."""
    for page in sorted(ROOT.glob("docs/*.md")):
        for block in re.findall(
            r"^```console\n\$ mindswap (.*?)^```", page.read_text("utf-8"), re.MULTILINE | re.DOTALL
        ):
            _, *lines = block.splitlines()
            if ".zh." not in page.name:
                # `check` translates the parts of problems alone: see above. Comments in YAML stay English.
                problem = r"(:\d+|^command line): (error|warning): |^#"
                yield from (line for line in lines if not re.search(problem, line))


def test_no_line_of_an_example_of_a_page_is_translated_in_part(chinese):
    lines = set(examples_of_pages())
    translated = {line: chinese.translate_line(line) for line in lines}
    assert len(lines) > 100
    assert [
        (line, text) for line, text in translated.items()
        if re.search("[一-鿿]", text) and ENGLISH.search(re.sub(rf"'[^']*'|{NAMES}|{COMMAND_LINE}", "", text))
    ] == []  # fmt: skip


def test_columns_of_a_table_are_aligned(chinese):
    table = format_table(("simulated", "step time"), [("your file", "8.71 s"), ("plan", "10.9 s")])
    assert table.splitlines() == [
        "仿真    单步耗时",
        "------  --------",
        "原配置    8.71 s",
        "plan      10.9 s",
    ]
    assert len({display_width(line) for line in table.splitlines()}) == 1


def test_columns_of_a_line_keep_their_places(chinese):
    before = "host memory          4.2 GiB  pinned per card; 33.6 GiB per node"
    after = chinese.translate_line(before)
    assert after == "主机内存             4.2 GiB  每卡锁页内存；每节点 33.6 GiB"
    assert display_width(after[: after.index("4.2")]) == before.index("4.2")


@pytest.mark.parametrize(
    "text",
    [
        'memory_optimize_level: "O0"',
        "swap, recompute, recompute_comm, and some text of a user",
        "/home/user/layers of a model/x.yaml",
        "optimizer: {type: AdamW}",
        "x" * 3000,
    ],
)
def test_what_is_no_text_of_mindswap_stays(chinese, text):
    assert chinese.translate_line(text) == text


def test_a_line_of_many_clauses_is_matched_a_few_times_for_each(chinese):
    """Each part of the line once: 20 clauses have 210 parts of one clause or more, and some more at commas."""
    chinese._match.cache_clear()
    chinese.translate_line("; ".join(f"op {index}: 3 of 4 layers, no copies and {index} GiB" for index in range(20)))
    assert 20 < chinese._match.cache_info().misses < 2000


def test_chinese_is_not_translated_again(chinese):
    once = chinese.translate_line("context.jit_level: 'O2', but swap needs O0 or O1")
    assert "SWAP 需要" in once and chinese.translate_line(once) == once


def test_a_text_of_a_module_is_found_once_a_line():
    source = '''
        """No text: a docstring."""
        parser.add_argument(help="no text either, of a user")
        raise Error(f"{path}: it is {size} bytes\\n    fix:     make {room} or two of {it}")
    '''
    found = list(TOOL.find_texts(textwrap.dedent(source)))
    assert found == ["{0}: it is {1} bytes", "fix:     make {0} or two of {1}"]


@pytest.mark.parametrize(
    ("words", "translated"),
    [
        (["plan", "--memory"], "mindswap plan：错误：参数 --memory：需要一个值"),
        (["plna"], "mindswap：错误：参数 COMMAND：不支持 'plna'（可选值："),
        (["check"], "mindswap check：错误：缺少必需的参数：CONFIG"),
        (["plan", "x.yaml", "-o", "a", "--in-place"], "参数 --in-place：不能与 -o/--output 同时使用"),
        (["plan", "x.yaml", "--jobs", "q"], "mindswap plan：错误：参数 --jobs：'q'：应为 1 到 256 之间的整数"),
    ],
)
def test_what_argparse_says_of_wrong_arguments(monkeypatch, capsys, words, translated):
    monkeypatch.setenv("MINDSWAP_LANG", "zh")
    assert main(words) == 1
    *_, last = capsys.readouterr().err.splitlines()
    assert translated in last
