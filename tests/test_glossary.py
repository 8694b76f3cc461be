"""The glossary: the same terms in both languages, and one Chinese term for each English one."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
MIN_TERMS = 60
# Words that the Chinese pages used beside the term of the glossary.
REPLACED = {
    "正向": "前向",
    "锁定内存": "锁页内存",
    "空跑": "dry run",
    "host 内存": "主机内存",
    "设备内存": "显存",
    "你": "您",
    "换出": "卸载",
    "换回": "预取",
    "搬移": "卸载",
    "核函数": "kernel",
    "显存池": "内存池",
    "放得下": "装得下",
    "放不下": "装不下",
    "流水线阶段": "stage",
    "整层重计算": "完全重计算",
}
# The glossary names the words that are replaced.
EXEMPT = ("glossary.zh.md",)


def rows(name: str) -> list[list[str]]:
    """Return the cells of the first table of a page."""
    lines = (ROOT / "docs" / name).read_text("utf-8").partition("\n## ")[0].splitlines()
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("| ")][2:]


def test_both_languages_have_the_same_terms():
    english = {term: chinese for term, chinese, _ in rows("glossary.md")}
    chinese = {term: name for name, term, _ in rows("glossary.zh.md")}
    assert len(english) >= MIN_TERMS and english == chinese


def test_a_chinese_term_stands_for_one_english_term():
    names = [chinese for _, chinese, _ in rows("glossary.md")]
    assert len(set(names)) == len(names)


def test_chinese_pages_use_the_terms():
    pages = [ROOT / "README_CN.md", *(path for path in ROOT.glob("docs/*.zh.md") if path.name not in EXEMPT)]
    texts = {path.name: re.sub(r"```.*?```|`[^`\n]*`", "", path.read_text("utf-8"), flags=re.DOTALL) for path in pages}
    assert len(texts) > 20
    assert [(name, word) for name, text in texts.items() for word in REPLACED if word in text] == []
