"""Everything on the pages that comes from runs, made again: outputs of examples, figures in sentences, pictures.

    python tools/docs.py [PAGE ...]        make docs

Needs MindFormers, matplotlib and nbclient. Lines left out (`...`) stay left out: a line is found again by its words,
whatever its numbers. A picture carries its words and the fingerprint of the example that it draws: `tests/test_docs.py`
compares both, so that no picture is older than the figures beside it.
"""

import difflib
import hashlib
import os
import re
import shlex
import struct
import subprocess
import sys
import zlib
from functools import cache
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
# Guides, and what is behind them in docs/internals/.
PAGES_IN_DOCS = [path.relative_to(ROOT).as_posix() for path in sorted(ROOT.glob("docs/**/*.md"))]
# For developers: in English only.
DEVELOPER_PAGES = (
    "CONTRIBUTING.md",
    "docs/development/how_to.md",
    "docs/development/testing.md",
    "docs/internals/architecture.md",
    "docs/internals/notes.md",
)
LEFT_OUT = "..."
CASE_4 = "configs/llama2_7b/case4_swap_and_recompute.yaml"
LLAMA2_7B = "benchmarks/models/llama2_7b.yaml"
SIMULATE = f"mindswap simulate {CASE_4}"
PLAN = f"mindswap plan {LLAMA2_7B} --simple\n"
# Each picture in docs/, the page with its example, and what the example begins with; `--plot` draws it.
PICTURES = {
    "compare_7b.png": ("docs/simulate.md", "mindswap compare benchmarks/models/llama2_7b.yaml"),
    "inspect_case4.png": ("docs/verify.md", f"mindswap inspect {CASE_4}"),
    "plan_7b.png": ("README.md", PLAN.strip()),
    "plan_sweep_7b.png": ("docs/plan.md", f"mindswap plan {LLAMA2_7B} --sweep"),
    "dryrun_case4.png": ("docs/dryrun.md", f"mindswap dryrun {CASE_4}"),
}
# Figures in sentences: page, the words around `#` in English and in Chinese ("": not there), and where it is from: the
# page with the example, what the example begins with ("": the page itself), and the words around `#` there. Words are
# patterns.
WAITS = ("docs/simulate.md", SIMULATE, "copy time .* # % of")
SWAPS = ("docs/simulate.md", SIMULATE, r"^layers 1-2 +[\d.]+ MiB +# MiB")
DRY_RUN = ("docs/plan.md", "mindswap dryrun docs/llama2_7b_planned.yaml")
DRY_RUN_KEPT = ("docs/plan.md", f"mindswap dryrun {LLAMA2_7B}")
RECIPE = ("docs/models.md", "")
SET = ("docs/dryrun_set.md", "")
TIMES = ("docs/internals/simulator.md", "")
BROAD = ("docs/dryrun_broad.md", "", "mean absolute error # %")
PUBLISHED = (*TIMES, r"the mean absolute error on\s+Atlas 800T A2 is # %")
KEEPS = ("README.md", PLAN, "^your file .* # GiB, ")
FOUND = PICTURES["inspect_case4.png"]
SENTENCES = (
    ("README.md", "cards needs # GiB a card", "每卡需要 # GiB", *KEEPS),
    ("README.md", "^# % longer. With", "单步耗时增加 #%；采用", "README.md", PLAN, "^full recompute .*[+]# %"),
    ("README.md", "takes only # % longer", "单步耗时只增加 #%", "README.md", PLAN, "^this plan .*[+]# %"),
    ("README.md", "memory of this plan is # MiB there", "采用该方案时峰值为 # MiB", *DRY_RUN, r"^0 \(0\) +# MiB"),
    ("README.md", r"^\(simulated: #\)", "（仿真值 # MiB）", *DRY_RUN, r"^0 \(0\) .* # MiB +[-+]"),
    ("README.md", "and # MiB with all activations kept", "保留全部激活值则为 # MiB", *DRY_RUN_KEPT, r"^0 \(0\) +# MiB"),
    (
        "README.md",
        "^a step is # % shorter",
        "单步耗时缩短 #%",
        *RECIPE,
        r"30b_a3b_4k.*as written .* # % \| [\d.]+ % \|$",
    ),
    ("README.md", r"from \[# dry runs", r"与 \[# 次 dry run", *SET, r"both figures \(# stages\)"),
    (
        "README.md",
        r"`simulate` is # % off on average from \[\d+ dry",
        r"_set.zh.md\) 平均相差 #%",
        *SET,
        "mean absolute error # %",
    ),
    ("docs/simulate.md", r"from # \[dry runs", r"的 # 次 \[dry run", *SET, r"both figures \(# stages\)"),
    ("README.md", r"dryrun_set.md\), # % from \[215", r"的 215 个 stage\]\(docs/dryrun_broad.zh.md\)相差 #%", *BROAD),
    ("docs/simulate.md", r"dryrun_broad.md\) it is # % off", r"的 215 个 stage 相比，平均相差 #%", *BROAD),
    ("docs/simulate.md", "Memory.*: # % off", "平均相差 #%（", *SET, "mean absolute error # %"),
    ("docs/commands.md", "[|] memory # %, time", "显存 #%，", *SET, "mean absolute error # %"),
    ("docs/commands.md", "memory [0-9.]+ %, time # % off", "时间 #%", *PUBLISHED),
    (
        "README.md",
        r"`simulate` is # % off on average from \[published",
        r"仿真精度\)平均相差 #%",
        *PUBLISHED,
    ),
    ("docs/simulate.md", "Time.*: # % off", "Atlas 800T A2 上平均相差 #%", *PUBLISHED),
    (
        "docs/simulate.md",
        r"simulator: # % on Atlas 800T A2",
        "建模的公开实测，Atlas 800T A2 平均误差 #%",
        *TIMES,
        "error is # % on Atlas 800T A2 .12 runs",
    ),
    (
        "docs/simulate.md",
        r"800T A2, # % on Atlas 900 A2 PoDc",
        "PoDc 平均误差 #%",
        *TIMES,
        r"and #\s+% on PoDc .15 runs",
    ),
    ("docs/plan.md", "it needs # GiB per card", "每卡需要 # GiB", *KEEPS),
    ("docs/simulate.md", "^# % of this step waits", "^这一步 #%", *WAITS),
    (
        "docs/simulate.md",
        "^# ms, in which a link",
        "前向需要 # ms",
        "docs/simulate.md",
        SIMULATE,
        r"^layers 1-2 .* \d+  # ms .* ms .* us",
    ),
    (
        "docs/simulate.md",
        "GiB less for # % of the step",
        "单步耗时增加 #%",
        *PICTURES["compare_7b.png"],
        "^llama2_7b_mixed .*[+]# %",
    ),
    ("docs/simulate.md", "swap # MiB each", "各要卸载 # MiB", *SWAPS),
    ("docs/configuration.md", r"^\| 3, 4 \| .* # MiB", "", *FOUND, "^layer 2 .*B +# MiB"),
    ("docs/configuration.md", r"^\| 3, 4 \| # MiB", "", *FOUND, "^layers 0, 3 +[0-9.]+ MiB +# MiB"),
)
# A list of what a step waits for may begin with other operators after a change of the simulator.
MIN_LIKENESS = 0.7
# The plan that pages show, dry run and name; `docs/plan.md` has its last part.
PLANNED = ROOT / "docs" / "llama2_7b_planned.yaml"
PLANNED_PART = re.compile(r"(?<=^```yaml\n)# mindswap: plan for .*?(?=^```)", re.MULTILINE | re.DOTALL)
CHUNK = struct.Struct(">I4s")
NOTEBOOK = ROOT / "docs" / "tour.ipynb"


def words_of(line: str) -> str:
    """A line without its numbers, their units and its spaces."""
    return re.sub(r"[\s\-+,]|\d[\d.]*\s*(?:[KMGT]i?B\b|[num]?s\b)?", "", line)


def refresh(shown: list[str], printed: list[str]) -> list[str]:
    """Lines that a page should show.

    Args:
        shown: what it shows now.
        printed: the whole output.

    Raises:
        ValueError: a line that is shown is not printed any more.
    """
    if LEFT_OUT not in shown:
        return printed
    result, position = [], 0
    for line in shown:
        if line == LEFT_OUT:
            result.append(line)
            continue
        position = position_of(line, printed, position)
        result.append(printed[position])
        position += 1
    return result


def position_of(line: str, printed: list[str], start: int) -> int:
    """Position of a line by its words; else, said with both lines, of the one that is most alike.

    Raises:
        ValueError: no line is alike.
    """
    for index in range(start, len(printed)):
        if words_of(printed[index]) == words_of(line):
            return index
    alike = difflib.get_close_matches(line, printed[start:], n=1, cutoff=MIN_LIKENESS)
    if not alike:
        raise ValueError(f"not printed any more: {line}")
    print(f"not printed any more: {line}\nin its place:         {alike[0]}", flush=True)
    return printed.index(alike[0], start)


@cache
def run(command: str) -> list[str]:
    """Output of a command of an example."""
    words = [sys.executable, "-m", *shlex.split(command)]
    environ = {**os.environ, "MINDSWAP_PROGRESS": "0"}
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False, env=environ)
    return (done.stdout + done.stderr).splitlines()


def run_notebook() -> Any:
    """The notebook with the outputs of a run in its folder."""
    import nbformat
    from nbclient import NotebookClient

    notebook = nbformat.read(NOTEBOOK, as_version=4)
    place = {"metadata": {"path": NOTEBOOK.parent}}
    client = NotebookClient(notebook, timeout=600, resources=place, record_timing=False)
    path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    client.execute(env={**os.environ, "PYTHONPATH": path, "MINDSWAP_PROGRESS": "0"})
    return notebook


def shown_by(notebook: Any) -> list[str]:
    """The texts and tables that it shows; no curves: a dry run launches some operators of one moment in any order."""
    outputs = [output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]
    texts = ("".join(output.get("text", "")) or str(sorted(output.data.items())) for output in outputs)
    return [re.sub('points="[^"]*"', "", text) for text in texts]


def chinese(page: str) -> str:
    """Return the name of the same page in Chinese."""
    return "README_CN.md" if page == "README.md" else page.replace(".md", ".zh.md")


def both(page: str) -> tuple[Path, Path]:
    """A page, and the same in Chinese."""
    return ROOT / page, ROOT / chinese(page)


def write(path: Path, text: str) -> None:
    """Only if it is new."""
    if text != path.read_text("utf-8"):
        path.write_text(text, "utf-8")


def refresh_page(page: str) -> None:
    """The outputs of the examples, in both languages."""
    for block in re.findall(r"^```console\n\$ (.*?)^```", both(page)[0].read_text("utf-8"), re.MULTILINE | re.DOTALL):
        command, *shown = block.splitlines()
        new = "\n".join([command, *refresh(shown, run(drawing(command))), ""])
        print(f"{page}: {'same' if new == block else 'NEW '}  {command}", flush=True)
        for path in both(page):
            write(path, path.read_text("utf-8").replace(block, new))


def refresh_plan() -> None:
    """The plan of Llama2-7B as a file, and the part of it that `docs/plan.md` shows."""
    run(f"{PLAN.strip()} -o {PLANNED.relative_to(ROOT)} --overwrite")
    text = PLANNED.read_text("utf-8")
    part = text[text.index("# mindswap: plan for") :]
    for path in both("docs/plan.md"):
        write(path, PLANNED_PART.sub(lambda _: part, path.read_text("utf-8"), count=1))


def example(page: str, command: str) -> str:
    """The example of a page that begins with a command: the command and what is shown of its output; "": the page."""
    text = (ROOT / page).read_text("utf-8")
    if not command:
        return text
    return re.search(rf"^```console\n\$ ({re.escape(command)}.*?)^```", text, re.MULTILINE | re.DOTALL).group(1)


def figure(words: str, text: str) -> re.Match[str]:
    """The last `#` of some words in a text: a number."""
    *before, last = words.split("#")
    found = re.search(r"[\d.]+".join(before) + r"([\d.]*\d)" + last, text, re.MULTILINE)
    if found is None:
        raise ValueError(f"not found: {words}")
    return found


def sentences() -> list[tuple[Path, str, str]]:
    """Pages, the words around a figure, and what it is by the example, with as many decimals as the page has."""
    return [
        (path, words, f"{float(figure(source, example(example_page, command)).group(1)):.{decimals(path, words)}f}")
        for page, english, chinese, example_page, command, source in SENTENCES
        for path, words in zip(both(page), (english, chinese), strict=True)
        if words
    ]


def decimals(path: Path, words: str) -> int:
    """Of the figure between some words of a page."""
    return len(figure(words, path.read_text("utf-8")).group(1).partition(".")[2])


def refresh_sentences() -> None:
    """The figures in sentences."""
    for path, words, value in sentences():
        text = path.read_text("utf-8")
        start, end = figure(words, text).span(1)
        write(path, text[:start] + value + text[end:])


def refresh_notebook() -> None:
    """The outputs of the notebook, if they are new."""
    import nbformat

    new = run_notebook()
    if shown_by(new) != shown_by(nbformat.read(NOTEBOOK, as_version=4)):
        nbformat.write(new, NOTEBOOK)


def fingerprint(name: str) -> str:
    """Of the example that a picture draws."""
    return hashlib.sha256(example(*PICTURES[name]).encode()).hexdigest()[:16]


def chunks(png: bytes) -> dict[str, str]:
    """The texts that a picture carries."""
    found, position = {}, 8
    while position < len(png):
        length, kind = CHUNK.unpack_from(png, position)
        data = png[position + 8 : position + 8 + length]
        if kind == b"tEXt":
            key, _, text = data.partition(b"\0")
            found[key.decode()] = text.decode("latin-1")
        if kind == b"iTXt":
            key, _, rest = data.partition(b"\0")
            found[key.decode()] = rest[2:].split(b"\0", 2)[2].decode()
        position += 12 + length
    return found


def stamped(png: bytes, text: str) -> bytes:
    """A picture that carries a text more, under the name `Example`."""
    body = b"tEXtExample\0" + text.encode()
    end = len(png) - 12
    return png[:end] + struct.pack(">I", len(body) - 4) + body + struct.pack(">I", zlib.crc32(body)) + png[end:]


def drawn(name: str) -> Path:
    """Where a picture is drawn before it is looked at."""
    return ROOT / "docs" / f"new_{name}"


def drawing(command: str) -> str:
    """The command of an example; of a picture's example it draws that, too: one run for both."""
    for name, picture in PICTURES.items():
        if command == example(*picture).splitlines()[0]:
            return f"{command} --plot {drawn(name)}"
    return command


def draw(name: str) -> None:
    """A picture, if its words are new or its example is."""
    path = ROOT / "docs" / name
    run(drawing(example(*PICTURES[name]).splitlines()[0]))
    png = stamped(drawn(name).read_bytes(), fingerprint(name))
    drawn(name).unlink()
    if not path.exists() or chunks(png) != chunks(path.read_bytes()):
        path.write_bytes(png)


if __name__ == "__main__":
    english = ("README.md", *(page for page in PAGES_IN_DOCS if ".zh." not in page))
    notebook = NOTEBOOK.relative_to(ROOT).as_posix()
    pages = sys.argv[1:] or (*english, notebook)
    if "docs/plan.md" in pages:
        refresh_plan()
    for page in pages:
        refresh_notebook() if page == notebook else refresh_page(page)
    refresh_sentences()
    for name, (page, _) in PICTURES.items():
        if page in pages:
            draw(name)
        drawn(name).unlink(missing_ok=True)  # another page may have the example of a picture
