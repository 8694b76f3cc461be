"""JSON against the schemas of the package, by as much of JSON Schema as they use."""

import json
import re
from pathlib import Path

FOLDER = Path(__file__).parents[1] / "mindswap/data/schema"
TYPES = {
    "string": str, "integer": int, "number": (int, float), "boolean": bool, "object": dict, "array": list,
    "null": type(None),
}  # fmt: skip
KNOWN = {
    "$schema", "$id", "$defs", "$ref", "title", "description", "type", "required", "properties", "items", "const",
    "enum", "pattern", "minimum", "allOf", "anyOf", "if", "then",
}  # fmt: skip


def load(name):
    return json.loads((FOLDER / name).read_text("utf-8"))


def answer_of(text):
    """The answer of a command, after it has been held against the schema that it names."""
    data = json.loads(text)
    assert misfits(data, load(f"{data['schema'].removeprefix('mindswap.').replace('mindswap', 'outer')}.json")) == []
    return data


def misfits(value, schema, root=None, path="$"):
    """Where a value is not as the schema says; a keyword that is not understood is a misfit, too."""
    root = schema if root is None else root
    found = [f"{path}: keyword {key}" for key in schema if key not in KNOWN]
    if "$ref" in schema:
        file, _, place = schema["$ref"].partition("#/$defs/")
        target = load(file) if file else root["$defs"][place]
        found += misfits(value, target, target if file else root, path)
    types = [schema["type"]] if isinstance(schema.get("type"), str) else schema.get("type", [])
    is_odd_bool = isinstance(value, bool) and "boolean" not in types  # for Python, True is an int
    if types and (is_odd_bool or not any(isinstance(value, TYPES[name]) for name in types)):
        return [*found, f"{path}: {value!r} is no {' or '.join(types)}"]
    found += [f"{path}: {value!r}"] * ("const" in schema and value != schema["const"])
    found += [f"{path}: {value!r}"] * ("enum" in schema and value not in schema["enum"])
    found += [f"{path}: {value!r}"] * ("minimum" in schema and value < schema["minimum"])
    found += [f"{path}: {value!r}"] * ("pattern" in schema and not re.search(schema["pattern"], value))
    if isinstance(value, dict):
        found += [f"{path}: no {key}" for key in schema.get("required", []) if key not in value]
        for key, inner in schema.get("properties", {}).items():
            found += misfits(value[key], inner, root, f"{path}.{key}") if key in value else []
    for position, item in enumerate(value if isinstance(value, list) else ()):
        found += misfits(item, schema.get("items", {}), root, f"{path}[{position}]")
    for part in schema.get("allOf", []):
        found += misfits(value, part, root, path)
    if "anyOf" in schema and all(misfits(value, part, root, path) for part in schema["anyOf"]):
        found.append(f"{path}: none of anyOf")
    if "if" in schema and not misfits(value, schema["if"], root, path):
        found += misfits(value, schema["then"], root, path)
    return found
