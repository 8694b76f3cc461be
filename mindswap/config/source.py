"""A configuration file with what it is based on (`base_config`), as one document."""

import os
from collections.abc import Iterable

from mindswap.config.model_folder import with_model_of_folder
from mindswap.config.nodes import Document, DocumentNode, MappingEntry
from mindswap.config.parse import parse_file
from mindswap.config.problem import Level, Problem
from mindswap.files import file_name

BASE_CONFIG = "base_config"
MAX_FILES = 100


def load_document(path: str | os.PathLike[str]) -> Document:
    """Read a configuration file and the files it is based on.

    `base_config` names a file or a list of files, relative to the folder of the file that names
    them. As in MindFormers, of several bases a later one replaces whole top-level keys of an earlier
    one; the file itself is then merged into them key by key. Every value keeps the file it stands in.
    `pretrained_model_dir` gives the model what the file does not say (`config.model_folder`). What could not be read
    is in the problems of the document.
    """
    return with_model_of_folder(_Loader().load(file_name(path), ()))


class _Loader:
    """Reads each file once, so that files which name each other many times cost nothing."""

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
        duplicates = list(document.duplicates)
        base: dict[object, MappingEntry] = {}
        for node in named.items if named.items is not None else (named,):
            if not isinstance(node.value, str) or not node.value:
                message = f"{BASE_CONFIG}: {node.kind} is no file name"
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
            base.update((entry.key, entry) for entry in (loaded.root.entries if loaded.root else ()) or ())
        base.pop(BASE_CONFIG, None)
        own = tuple(entry for entry in document.root.unique_entries() if entry.key != BASE_CONFIG)
        root = _Merger().merge_entries(document.root, own, base.values())
        return Document(document.file, root, tuple(dict.fromkeys(problems)), tuple(dict.fromkeys(duplicates)))


class _Merger:
    """Merges mappings key by key; each pair of nodes once, since aliases share nodes."""

    def __init__(self) -> None:
        self._merged: dict[tuple[int, int], DocumentNode] = {}

    def merge_entries(
        self, node: DocumentNode, own: Iterable[MappingEntry], base: Iterable[MappingEntry]
    ) -> DocumentNode:
        entries = {entry.key: entry for entry in base}
        for entry in own:
            below = entries.get(entry.key)
            value = entry.value if below is None else self._merge(entry.value, below.value)
            entries[entry.key] = MappingEntry(entry.key, entry.location, value)
        return DocumentNode(node.location, entries=tuple(entries.values()))

    def _merge(self, own: DocumentNode, base: DocumentNode) -> DocumentNode:
        if own.entries is None or base.entries is None:
            return own
        pair = (id(own), id(base))
        if pair not in self._merged:
            self._merged[pair] = self.merge_entries(own, own.unique_entries(), base.unique_entries())
        return self._merged[pair]


def _problem(node: DocumentNode, message: str, allowed: str = "") -> Problem:
    return Problem(node.location, "base-config", Level.ERROR, message, allowed)
