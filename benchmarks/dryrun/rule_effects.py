"""What rules of `mindswap check` state about effect, against MindSpore's own Ascend backend in a dry run.

    python benchmarks/dryrun/rule_effects.py                  # all that is not known yet, then the table
    python benchmarks/dryrun/rule_effects.py overlap          # the rows of some rules
    python benchmarks/dryrun/rule_effects.py --known          # nothing is dry run
    python benchmarks/dryrun/rule_effects.py --write          # the table of docs/rule_effects.md and its Chinese page

rule_effects.yaml declares the rows: a configuration with the entry that a rule reports, and without it, as the fix
advises. Peaks are kept in measured.json, as those of compare.py, by content. Rows of `alike` need no dry run: a layer
is treated as without the entry, so the same network is compiled. Exit code 1 if a statement is not true.
"""

import argparse
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

FOLDER = Path(__file__).resolve().parent
ROOT = FOLDER.parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks.dryrun.compare import (  # noqa: E402 the checkout must be importable, installed or not
    MIB,
    NOT_MEASURED,
    configuration,
    key_of,
    known_results,
    measure,
    merged,
    write_table,
)
from mindswap.config.render import document_from_data  # noqa: E402
from mindswap.policy.formats.mindformers1.read import build_policy  # noqa: E402
from mindswap.policy.formats.mindformers1.schema import RECOMPUTE_FLAGS  # noqa: E402
from mindswap.policy.formats.mindformers1.stage_recompute import expand_stage_recompute  # noqa: E402
from mindswap.policy.resolve import resolve_layer, with_recompute_only  # noqa: E402
from mindswap.rules.checker import check_document  # noqa: E402

# The pages, and the words of their tables.
PAGES = {
    "en": (ROOT / "docs/rule_effects.md", ("rule", "configuration", "entry", "with", "without", "dry run", "check")),
    "cn": (ROOT / "docs/rule_effects.zh.md", ("规则", "配置", "条目", "有该条目", "没有该条目", "dry run", "check")),
}
WORDS = {
    "en": {
        "alike": "the same network",
        "equal": "no effect",
        "less": "frees {} MiB",
        "more": "takes {} MiB more",
        "stops": "stops",
        "silent": "-",
    },
    "cn": {
        "alike": "同一个网络",
        "equal": "不起作用",
        "less": "释放 {} MiB",
        "more": "多占 {} MiB",
        "stops": "停止",
        "silent": "-",
    },
}


@dataclass(frozen=True)
class Row:
    """One entry in one configuration.

    Attributes:
        rule: that makes a statement about the entry.
        is_silent: the rule does not report the entry here, since it has an effect.
        stops: the rule states that MindSpore does not compile the entry.
        is_alike: the entry leaves every layer as it is without it.
        title: the configuration, as it is shown.
        entry: what is there with the entry and not without, as it is shown.
        data_with, data_without: the two configurations.
    """

    rule: str
    is_silent: bool
    stops: bool
    is_alike: bool
    title: str
    entry: str
    data_with: dict[str, Any]
    data_without: dict[str, Any]

    def reported(self) -> bool:
        """Return whether `mindswap check` reports the entry by the rule."""
        return self.rule in {p.rule for p in check_document(document_from_data(self.data_with, self.title)).problems}

    def is_treated_alike(self) -> bool:
        """Return whether every operator of every layer is swapped and recomputed as without the entry."""
        return _treatments(self.data_with, self.title) == _treatments(self.data_without, self.title)


def _treatments(data: dict[str, Any], title: str) -> list[Any]:
    """What happens to each operator of each layer, and what else reaches MindSpore."""
    document = document_from_data(data, title)
    checked = check_document(document)
    assert checked.trees is not None and checked.settings is not None and checked.num_layers is not None
    policy = build_policy(checked.settings)  # also of what has errors
    if not policy.is_swap_enabled:
        policy = with_recompute_only(expand_stage_recompute(document, checked.num_layers).policy)
    decided = [resolve_layer(policy, index, layer) for index, layer in enumerate(checked.trees.layers)]
    operators = [
        {path: (one.treatment, one.prefetch, bool(one.comm_recomputed_by)) for path, one in layer.operators().items()}
        for layer in decided
    ]
    return [operators, [getattr(policy, flag) for flag in RECOMPUTE_FLAGS]]


@dataclass(frozen=True)
class Effect:
    """Peaks of the stages of a step with and without an entry, in MiB; empty where it did not run."""

    with_mib: tuple[int, ...]
    without_mib: tuple[int, ...]
    is_measured: bool = True
    is_alike: bool = False  # not dry run: the same network is compiled

    @property
    def verdict(self) -> str:
        """One of the keys of `WORDS`; of several stages the one that the entry changes most decides."""
        if self.is_alike:
            return "alike"
        if not self.with_mib:
            return "stops"
        return "equal" if not self.change_mib else "less" if self.change_mib < 0 else "more"

    @property
    def change_mib(self) -> int:
        """Return the largest change of the peaks, in MiB."""
        changes = [a - b for a, b in zip(self.with_mib, self.without_mib, strict=True)]
        return max(changes, key=abs)

    def confirms(self, row: Row) -> bool:
        """Return whether what a rule states about an entry is true: it frees nothing, or stops; silent: it frees."""
        if row.is_alike:
            return self.is_alike
        if row.stops:
            return self.verdict == "stops"
        return self.verdict == "less" if row.is_silent else self.verdict in ("equal", "more")


def declared() -> dict[str, Any]:
    """Content of rule_effects.yaml."""
    content: dict[str, Any] = yaml.safe_load((FOLDER / "rule_effects.yaml").read_text(encoding="utf-8"))
    return content


def rows_of(rules: Sequence[str] = ()) -> list[Row]:
    """The declared rows, of all rules or of some."""
    families = yaml.safe_load((FOLDER / "set.yaml").read_text(encoding="utf-8"))
    return [
        _row(families, rule, row)
        for part in ("rows", "alike")
        for rule, rows in declared()[part].items()
        for row in ({**row, "is_alike": part == "alike"} for row in rows)
        if not rules or rule in rules
    ]


def _row(families: dict[str, Any], rule: str, row: Mapping[str, Any]) -> Row:
    shared = merged(configuration(families, row["base"]), row.get("also", {}))
    title = row["base"] + (f", `{_flow(row['also'])}`" if row.get("also") else "")
    return Row(
        rule=rule,
        is_silent=row.get("silent", False),
        stops=row.get("stops", False),
        is_alike=row["is_alike"],
        title=title,
        entry=f"`{_flow(row['with'])}`" + (f", without `{_flow(row['without'])}`" if row.get("without") else ""),
        data_with=merged(shared, row["with"]),
        data_without=merged(shared, row.get("without", {})),
    )


def _flow(change: Mapping[str, Any]) -> str:
    """A change in one line of YAML."""
    return (
        yaml.safe_dump(dict(change), default_flow_style=True, width=10**6, sort_keys=False).strip().replace("|", r"\|")
    )


def effect_of(row: Row, is_again: bool = False, is_known_only: bool = False) -> Effect:
    """The peaks of a row; what is not known is dry run, or missing."""
    if row.is_alike:
        return Effect((), (), is_alike=row.is_treated_alike())
    return _effect(*(measure(_name(d), d, is_again, is_known_only) for d in (row.data_with, row.data_without)))


def recorded_effect(row: Row, mindspore: str) -> Effect:
    """The peaks of a row as they are recorded for a version of MindSpore, which need not be installed."""
    if row.is_alike:
        return effect_of(row)
    known = known_results()
    return _effect(*(known.get(key_of(data, mindspore)) for data in (row.data_with, row.data_without)))


def _effect(measured_with: Mapping[str, Any] | None, measured_without: Mapping[str, Any] | None) -> Effect:
    if measured_with is None or measured_without is None:
        return Effect((), (), is_measured=False)
    peaks = (tuple(used // MIB for used, _ in one.get("peaks", ())) for one in (measured_with, measured_without))
    return Effect(*peaks)


def _name(data: dict[str, Any]) -> str:
    """Name of a dry run in measured.json: one for each content."""
    return f"rule effects {key_of(data, '')[:16]}"


def cells(row: Row, effect: Effect, language: str = "en") -> list[str]:
    """A row of the table."""
    words = WORDS[language]
    figures = [", ".join(f"{peak} MiB" for peak in peaks) or "-" for peaks in (effect.with_mib, effect.without_mib)]
    verdict = words[effect.verdict].format(abs(effect.change_mib) if effect.with_mib else "")
    reported = words["silent"] if row.is_silent else f"`[{row.rule}]`"
    return [f"`{row.rule}`", row.title, row.entry, *figures, verdict if effect.is_measured else NOT_MEASURED, reported]


def table(rows: Sequence[tuple[Row, Effect]], language: str) -> str:
    """Return the table in Markdown, followed by the rules that are verified elsewhere."""
    header = PAGES[language][1]
    lines = [header, ["---"] * len(header), *(cells(row, effect, language) for row, effect in rows)]
    reasons = (f"- `{rule}`: {texts[language]}\n" for rule, texts in declared()["elsewhere"].items())
    return "".join(f"| {' | '.join(line)} |\n" for line in lines) + "\n" + "".join(reasons)


def faults(rows: Sequence[tuple[Row, Effect]]) -> Iterator[str]:
    """Statements that are not true, and entries that a rule does not report although it states something about them."""
    for row, effect in rows:
        where = f"{row.rule}: {row.title}: {row.entry}"
        if row.reported() == row.is_silent:
            yield f"{where}: check {'reports' if row.is_silent else 'does not report'} it"
        if effect.is_measured and not effect.confirms(row):
            yield f"{where}: {effect.with_mib} MiB with it, {effect.without_mib} without"


def main(words: Sequence[str]) -> int:
    """Compare the selected rows."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rules", nargs="*", help="default is all")
    parser.add_argument("--again", action="store_true", help="dry run rows that are known, too")
    parser.add_argument("--known", action="store_true", help="dry run nothing; rows that are not known are shown so")
    parser.add_argument("--write", action="store_true", help="write the table into the docs")
    args = parser.parse_args(words)
    found = []
    for row in rows_of(args.rules):
        effect = effect_of(row, args.again, args.known)
        print(*cells(row, effect), sep=" | ", flush=True)
        found.append((row, effect))
    for language, (page, _) in PAGES.items() if args.write else ():
        write_table(page, table(found, language))
    wrong = list(faults(found))
    print("\n".join(("", *wrong) if wrong else ("", "every statement is true")))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
