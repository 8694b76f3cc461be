"""Rules for sections in which MindFormers takes certain keys only, and for the depth of the file."""

from collections.abc import Iterator

from mindswap.config.findings import Finding, rule
from mindswap.config.nodes import DocumentNode, key_text, show
from mindswap.config.problem import Level
from mindswap.files import package_data
from mindswap.policy.wording import closest_names
from mindswap.rules.context import Context
from mindswap.rules.refusals import OTHER_MODES

# Values of required keys, for fixes.
EXAMPLES = {
    "trainer": "CausalLanguageModelingTrainer",
    "train_dataset_task": "CausalLanguageModelDataset",
    "model": "{model_type: qwen3}",
    "runner_wrapper": "MFTrainOneStepCell",
    "optimizer": "AdamW",
    "lr_schedule": "CosineWithWarmUpLR",
}
MAX_DEPTH = 10  # YAML_MAX_NESTING_DEPTH of mindformers/tools/check_rules.py


@rule(Level.ERROR)
def section_refused(context: Context) -> Iterator[Finding]:
    """A key that MindFormers does not take in its section, or a section without the key that it must have.

    MindFormers takes certain keys only in parallel_config, runner_config, monitor_config and, for legacy models,
    moe_config; trainer, model, optimizer, lr_schedule and runner_wrapper must have a key. Elsewhere it takes any key.

    PASS: parallel_config: {data_parallel: 8}
    FAIL: parallel_config: {data_paralell: 8}
    """
    if context.document.value("run_mode") in OTHER_MODES:
        return
    sections = package_data("check/sections.yaml")
    keys_by_section = sections["known"] | (sections["known_legacy"] if context.document.is_legacy else {})
    for name, keys in keys_by_section.items():
        yield from _unknown_keys(context, name, keys)
    is_complete = all(context.document.get(name) is not None for name in ("runner_config", "model"))
    for name, key in sections["required"].items() if is_complete else ():  # a fragment lacks more
        section = context.document.get(name)
        if section is not None and section.entries and section.get(key) is None:
            message = f"{name}: MindFormers needs {key} there"
            yield Finding(section.location, message, fix=f"{key}: {EXAMPLES[name]}", level=context.refusal_level)


def _unknown_keys(context: Context, name: str, keys: list[str]) -> Iterator[Finding]:
    section = context.document.get(name)
    if section is None or section.is_null:
        return
    if section.entries is None and name != "swap_config":
        message = f"{name}: {show(section)} is {section.kind}"
        yield Finding(section.location, message, "a mapping", "delete it, or make it a mapping", context.refusal_level)
    reported = {unknown.entry.location for unknown in context.settings.parse_issues.unknown_keys}  # by `unknown-key`
    for entry in section.unique_entries():
        is_added_by_mindformers = not entry.location.line  # by MindFormers, while a run begins
        if entry.key not in keys and entry.location not in reported and not is_added_by_mindformers:
            key = key_text(entry.key)
            fix = (
                f"{closest_names(key, keys)[0]}: {show(entry.value)}"
                if closest_names(key, keys, min_similarity=0.7)
                else "delete it"
            )
            yield Finding(entry.location, f"{name}.{key}: no such key", ", ".join(keys), fix, context.refusal_level)


@rule(Level.ERROR)
def nesting_refused(context: Context) -> Iterator[Finding]:
    """Mappings inside each other, more than 10 deep: MindFormers does not load such a file.

    PASS: {a: {b: {c: {d: {e: {f: {g: {h: {i: {j: 1}}}}}}}}}}
    FAIL: {a: {b: {c: {d: {e: {f: {g: {h: {i: {j: {k: 1}}}}}}}}}}}
    """
    node = _find_too_deep(context.document.root, MAX_DEPTH)
    if node is not None:
        message = f"mappings are nested more than {MAX_DEPTH} deep"
        yield Finding(node.location, message, f"{MAX_DEPTH} levels", "fewer levels", context.refusal_level)


def _find_too_deep(node: DocumentNode | None, levels: int) -> DocumentNode | None:
    """Return the first mapping that is nested in more than `levels` mappings; None if there is none."""
    pending = [(node, levels)]
    while pending:
        current, num_levels = pending.pop()
        if current is None or current.entries is None:
            continue
        if num_levels == 0:
            return current
        pending += [(entry.value, num_levels - 1) for entry in reversed(current.unique_entries())]
    return None
