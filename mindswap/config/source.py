"""Load a configuration file merged with its bases (`base_config`) as one document."""

import contextlib
import contextvars
import difflib
import os
from collections.abc import Iterable, Iterator
from dataclasses import replace

from mindswap.config.nodes import Document, DocumentNode, MappingEntry, key_text
from mindswap.config.parse import parse_file
from mindswap.config.problem import Level, Location, Problem, find_errors
from mindswap.files import file_name, package_data

# Model settings from the Hugging Face `config.json` in `pretrained_model_dir`; the YAML overrides them.
#
# MindFormers reads `config.json` of the folder and merges `model.model_config` of the YAML into it, key by key
# (models/build_config.py, merge_model_config; trainer/base_trainer.py, create_network). Weights are not needed.

FOLDER_KEY = "pretrained_model_dir"
FOLDER_RULE = "pretrained-model-dir"
CONFIG_NAME = "config.json"
_folder_of_option: contextvars.ContextVar[str | None] = contextvars.ContextVar("pretrained_model_dir", default=None)


@contextlib.contextmanager
def use_folder(folder: str | None) -> Iterator[None]:
    """Take the model of every configuration from a folder inside the context; None changes nothing."""
    token = _folder_of_option.set(folder)
    try:
        yield
    finally:
        _folder_of_option.reset(token)


def given_folder() -> str | None:
    """Return the folder of `--pretrained_model_dir`; None without it."""
    return _folder_of_option.get()


def with_model_of_folder(document: Document) -> Document:
    """Return the document with `model.model_config` merged into the `config.json` of the model folder.

    If the folder has no readable `config.json`, the document gets a warning.
    """
    root, named = document.root, document.get(FOLDER_KEY)
    if root is None or root.entries is None:
        return document
    folder = given_folder() or (named.value if named is not None else None)
    if not isinstance(folder, str) or not folder:
        return document
    location = Location("--pretrained_model_dir") if named is None or given_folder() else named.location
    path = os.path.join(folder, CONFIG_NAME)  # noqa: PTH118 keeps "./" for messages
    model_file = parse_file(path)
    if model_file.root is None or model_file.root.entries is None:
        reason = model_file.problems[0].message if model_file.problems else "is not a mapping"
        message = f"{FOLDER_KEY}: the model is not known: {path}: {reason}"
        fix = "name a folder with the config.json of the model (weights are not needed), here or as"
        problem = Problem(location, FOLDER_RULE, Level.WARNING, message, fix=f"{fix} --pretrained_model_dir DIR")
        return replace(document, problems=(*document.problems, problem))
    model = root.get("model") or DocumentNode(location, entries=())
    model_config = model.get("model_config") or DocumentNode(location, entries=())
    merged = {entry.key: entry for entry in (*model_file.root.unique_entries(), *model_config.unique_entries())}
    model = _with_entry(model, "model_config", DocumentNode(model_config.location, entries=tuple(merged.values())))
    return replace(document, root=_with_entry(root, "model", model))


def _with_entry(node: DocumentNode, key: str, value: DocumentNode) -> DocumentNode:
    entries = {entry.key: entry for entry in node.unique_entries()}
    entries[key] = replace(entries[key], value=value) if key in entries else MappingEntry(key, value.location, value)
    return DocumentNode(node.location, entries=tuple(entries.values()))


BASE_CONFIG = "base_config"
FORM_RULE = "no-configuration"
MAX_SHOWN_KEYS = 5
MAX_FILES = 100


def as_document(config: str | os.PathLike[str] | Document) -> Document:
    """Return a configuration that is named by its path or was read already."""
    return config if isinstance(config, Document) else load_document(config)


def load_document(path: str | os.PathLike[str]) -> Document:
    """Read a configuration file and its base files.

    `base_config` names a file or a list of files, relative to the folder of the file that names
    them. As in MindFormers, of several bases a later one replaces complete top-level keys of an earlier
    one; the file itself is then merged into them key by key. Every value keeps its location. Missing model settings
    come from `pretrained_model_dir`, see `with_model_of_folder`. Read errors are in the problems of the document.
    """
    return with_form(with_model_of_folder(_Loader().load(file_name(path), ())))


def with_form(document: Document) -> Document:
    """Return the document with an additional error if no key is one of a configuration."""
    root = document.root
    if root is None or find_errors(document.problems):
        return document
    keys = [key_text(entry.key) for entry in root.unique_entries()]
    known_keys = package_data("check/top_level.yaml")
    if not set(known_keys).isdisjoint(keys) or any(difflib.get_close_matches(key, known_keys, 1, 0.75) for key in keys):
        return document
    description = f"its keys are {', '.join(keys[:MAX_SHOWN_KEYS])}" if keys else "it is empty"
    message = f"the file is no configuration of MindFormers: {description}"
    allowed = "a mapping with model, trainer, parallel_config, swap_config, ..."
    fix = "the YAML of a training (run_mindformer.py --config)"
    problem = Problem(root.location, FORM_RULE, Level.ERROR, message, allowed, fix)
    return replace(document, problems=(*document.problems, problem))


class _Loader:
    """Loader that reads each file once, even if it is the base of several files."""

    def __init__(self) -> None:
        self._documents: dict[str, Document] = {}

    def load(self, path: str, opened_by: tuple[str, ...]) -> Document:
        identity = os.path.realpath(path) if "\0" not in path else path
        if identity not in self._documents:
            self._documents[identity] = self._with_bases(parse_file(path), path, (*opened_by, identity))
        return self._documents[identity]

    def _with_bases(self, document: Document, path: str, opened_by: tuple[str, ...]) -> Document:
        named = document.get(BASE_CONFIG)
        if named is None or document.root is None:
            return document
        problems = list(document.problems)
        duplicates, wide = list(document.duplicates), list(document.wide)
        base: dict[object, MappingEntry] = {}
        for node in named.items if named.items is not None else (named,):
            if not isinstance(node.value, str) or not node.value:
                message = f"{BASE_CONFIG}: {node.kind} is not a file name"
                problems.append(_problem(node, message, "a path or a list of paths"))
                continue
            base_path = os.path.join(os.path.dirname(path), node.value)  # noqa: PTH118, PTH120 keeps "./"
            if os.path.realpath(base_path.replace("\0", "")) in opened_by:
                problems.append(_problem(node, f"{BASE_CONFIG}: '{node.value}' is based on this file itself"))
                continue
            if len(self._documents) + len(opened_by) > MAX_FILES:
                problems.append(_problem(node, f"{BASE_CONFIG}: too many files", f"at most {MAX_FILES}"))
                break
            loaded = self.load(base_path, opened_by)
            problems += loaded.problems
            duplicates += loaded.duplicates
            wide += loaded.wide
            base.update((entry.key, entry) for entry in (loaded.root.entries if loaded.root else ()) or ())
        base.pop(BASE_CONFIG, None)
        file_entries = tuple(entry for entry in document.root.unique_entries() if entry.key != BASE_CONFIG)
        merger = _Merger()
        root = merger.merge_entries(document.root, file_entries, base.values())
        problems += merger.problems
        unique_problems, unique_duplicates = tuple(dict.fromkeys(problems)), tuple(dict.fromkeys(duplicates))
        return Document(document.file, root, unique_problems, unique_duplicates, wide=tuple(dict.fromkeys(wide)))


class _Merger:
    """Merger of mappings by key; each pair of nodes is merged once, because aliases share nodes."""

    def __init__(self) -> None:
        self._merged: dict[tuple[int, int], DocumentNode] = {}
        self.problems: list[Problem] = []

    def merge_entries(
        self, node: DocumentNode, entries_of_file: Iterable[MappingEntry], base: Iterable[MappingEntry]
    ) -> DocumentNode:
        entries = {entry.key: entry for entry in base}
        for entry in entries_of_file:
            below = entries.get(entry.key)
            value = entry.value if below is None else self._merge(entry.value, below.value)
            entries[entry.key] = MappingEntry(entry.key, entry.location, value)
        return DocumentNode(node.location, entries=tuple(entries.values()))

    def _merge(self, value: DocumentNode, base: DocumentNode) -> DocumentNode:
        if value.entries and base.entries is None and not base.is_null:
            message = f"{BASE_CONFIG}: a mapping is merged into {base.kind} ({base.location}); MindFormers stops there"
            self.problems.append(_problem(value, message, "a mapping in both files, or in none"))
        if value.entries is None or base.entries is None:
            return value
        pair = (id(value), id(base))
        if pair not in self._merged:
            self._merged[pair] = self.merge_entries(value, value.unique_entries(), base.unique_entries())
        return self._merged[pair]


def _problem(node: DocumentNode, message: str, allowed: str = "") -> Problem:
    return Problem(node.location, "base-config", Level.ERROR, message, allowed)
