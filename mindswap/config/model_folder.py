"""The `config.json` of Hugging Face that `pretrained_model_dir` names, below what the YAML itself says of the model.

MindFormers reads the folder's `config.json` and lays `model.model_config` of the YAML over it, key by key
(models/build_config.py, merge_model_config; trainer/base_trainer.py, create_network). Weights are not needed.
"""

import contextlib
import contextvars
import os
from collections.abc import Iterator
from dataclasses import replace

from mindswap.config.nodes import Document, DocumentNode, MappingEntry
from mindswap.config.parse import parse_file
from mindswap.config.problem import Level, Location, Problem

FOLDER_KEY = "pretrained_model_dir"
FOLDER_RULE = "pretrained-model-dir"
CONFIG_NAME = "config.json"
_given: contextvars.ContextVar[str | None] = contextvars.ContextVar("pretrained_model_dir", default=None)


@contextlib.contextmanager
def use_folder(folder: str | None) -> Iterator[None]:
    """While this lasts, every configuration takes its model from this folder; None leaves what it says itself."""
    token = _given.set(folder)
    try:
        yield
    finally:
        _given.reset(token)


def given_folder() -> str | None:
    """The folder that the command line names."""
    return _given.get()


def with_model_of_folder(document: Document) -> Document:
    """The document with the model of the folder below its own `model.model_config`.

    Where the folder has no readable `config.json`, the document has a warning more.
    """
    root, named = document.root, document.get(FOLDER_KEY)
    if root is None or root.entries is None:
        return document
    folder = given_folder() or (named.value if named is not None else None)
    if not isinstance(folder, str) or not folder:
        return document
    location = Location("--pretrained_model_dir") if named is None or given_folder() else named.location
    path = os.path.join(folder, CONFIG_NAME)  # noqa: PTH118 keeps "./" for messages
    found = parse_file(path)
    if found.root is None or found.root.entries is None:
        reason = found.problems[0].message if found.problems else "is no mapping"
        message = f"{FOLDER_KEY}: the model is not known: {path}: {reason}"
        fix = "name a folder with the config.json of the model (weights are not needed), here or as"
        problem = Problem(location, FOLDER_RULE, Level.WARNING, message, fix=f"{fix} --pretrained_model_dir DIR")
        return replace(document, problems=(*document.problems, problem))
    model = root.get("model") or DocumentNode(location, entries=())
    own = model.get("model_config") or DocumentNode(location, entries=())
    merged = {entry.key: entry for entry in (*found.root.unique_entries(), *own.unique_entries())}
    model = _with_entry(model, "model_config", DocumentNode(own.location, entries=tuple(merged.values())))
    return replace(document, root=_with_entry(root, "model", model))


def _with_entry(node: DocumentNode, key: str, value: DocumentNode) -> DocumentNode:
    entries = {entry.key: entry for entry in node.unique_entries()}
    entries[key] = replace(entries[key], value=value) if key in entries else MappingEntry(key, value.location, value)
    return DocumentNode(node.location, entries=tuple(entries.values()))
