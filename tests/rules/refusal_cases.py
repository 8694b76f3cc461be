"""Cases of refusals: for each condition of a table a configuration in which it holds, and the same put right.

`cases/<module>.yaml` has, by the name of the refusal: a template, a text, `what is wrong => what is right`, and what of
MindFormers or MindSpore is called with both (`tests/rules/upstream_calls.py`; `read`: its condition was read only).
`@` in the text is where the problem is.
"""

import importlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from mindswap.config.parse import parse_document
from mindswap.rules.checker import check_document
from mindswap.rules.mindformers1 import find_rules
from mindswap.rules.refusals import Refusal
from mindswap.rules.values import Values

MODULES = (
    "attention", "classes", "contexts", "experts", "models", "moe", "optimizers", "pipelines", "rates", "runs",
    "splits",
)  # fmt: skip
SPARSE = "model_type: deepseek_v3, multi_latent_attention: True, kv_lora_rank: 512, experimental_attention_variant: dsa"
# Texts before, and after, that of a case.
TEMPLATES = {
    "any": ("", ""),
    "whole": ("runner_config: {batch_size: 1}\n", ""),
    "whole-newer": ("use_legacy: False\nrunner_config: {batch_size: 1}\n", ""),
    "model": ("use_legacy: False\nmodel: {model_config: {", "}}"),
    "legacy-model": ("model: {model_config: {", "}}"),
    "experts": ("use_legacy: False\nmodel: {model_config: {model_type: qwen3_moe, ", "}}"),
    "deepseek": ("use_legacy: False\nmodel: {model_config: {model_type: deepseek_v3, ", "}}"),
    "sparse": ("use_legacy: False\n", ""),
}


@dataclass(frozen=True)
class Case:
    """One condition under which a training stops."""

    module: str  # file of rules
    name: str  # of the refusal
    text: str  # configuration, `@` where the problem is
    right: str  # the same without the mistake
    call: str  # what of MindFormers or MindSpore is called

    def __str__(self) -> str:
        return self.name


def read_cases(module: str) -> list[Case]:
    """Return the cases of a file of rules."""
    content: dict[str, Any] = yaml.safe_load((Path(__file__).parent / "cases" / f"{module}.yaml").read_text("utf-8"))
    return [_read_case(module, name, *row) for name, row in content.items()]


def _read_case(module: str, name: str, template: str, body: str, change: str, call: str) -> Case:
    before, after = TEMPLATES[template]
    if template.startswith("whole") and "model:" not in body:
        before += "model: {model_config: {seq_length: 128}}\n"
    text = before + body + after
    if template == "sparse" and "model:" not in body:
        text += f"\nmodel: {{model_config: {{{SPARSE}}}}}"
    elif template == "sparse":
        text = text.replace("model_config: {", "model_config: {model_type: deepseek_v3, ")
    _wrong, _, right = (part.replace("@", "") for part in change.partition(" => "))
    marked = change.partition(" => ")[0]
    assert text.count(marked) == 1, f"{name}: {marked!r} is {text.count(marked)} times in {text!r}"
    return Case(module, name, text, text.replace(marked, right, 1).replace("@", ""), call)


OTHERS = "others"  # cases of rules without a table


def refusals(module: str) -> dict[str, Refusal]:
    """Return the refusals of a file of rules by their names."""
    return {
        refusal.name: refusal for refusal in importlib.import_module(f"mindswap.rules.mindformers1.{module}").REFUSALS
    }


def assert_refused(case: Case) -> None:
    """Assert that the mistake is an error of the rule at its place, and what is right is none."""
    rule = case.name.partition(" ")[0] if case.module == OTHERS else rule_of(case.module)
    before = case.text[: case.text.index("@")]
    place = (before.count("\n") + 1, len(before) - before.rfind("\n"))
    problems = [p for p in _problems(case.text.replace("@", "")) if p.rule == rule]
    found = [(p.location.line, p.location.column) for p in problems if p.level.value == "error"]
    assert place in found, problems
    assert all((p.fix or p.allowed) and "..." not in p.fix for p in problems)
    assert [p for p in _problems(case.right) if p.rule == rule and p.level.value == "error"] == []
    if case.module != OTHERS:
        refusal = refusals(case.module)[case.name]
        assert _holds(refusal, case.text.replace("@", "")) and not _holds(refusal, case.right)


def rule_of(module: str) -> str:
    """Return the id of the rule that goes through the table of a file."""
    ids = {name: rule.id for rule in find_rules().values() for name in (rule.find.__module__.rpartition(".")[2],)}
    return ids[module]


def _holds(refusal: Refusal, text: str) -> bool:
    return bool(refusal.holds(Values(parse_document(text, "x.yaml"))))


def _problems(text: str) -> tuple[Any, ...]:
    return check_document(parse_document(text, "x.yaml")).problems
