"""Graphs of networks that real MindFormers builds, compiled in processes of their own."""

import json
from collections import Counter
from pathlib import Path

import yaml

from tests import forked
from tests.adapters.edits import edited

ROOT = Path(__file__).resolve().parents[2]
CASES = ROOT / "configs" / "llama2_7b"
CPU_CASES = CASES / "cpu"
QWEN3 = ROOT / "tests" / "data" / "qwen3_small.yaml"
DEEPSEEK = ROOT / "tests" / "data" / "deepseek_v3_small.yaml"
QWEN3_MOE = ROOT / "tests" / "data" / "qwen3_moe_small.yaml"
SCRIPT = Path(__file__).parent / "graph_pairs.py"


def job(config: Path, folder: Path | None = None, edits: dict | None = None, how: str = "capture", **options) -> dict:
    """One job for `compile_jobs`; with edits, on a changed copy of the file in `folder`."""
    if edits:
        text = yaml.safe_dump(edited(yaml.safe_load(config.read_text()), edits))
        config = folder / f"{config.stem}_{len(list(folder.iterdir()))}.yaml"
        config.write_text(text)
    return {"config": str(config), "how": how, **options}


def compile_jobs(jobs: list[dict]) -> list[dict]:
    """What `graph_pairs.py` says of each job; all jobs share one process."""
    result = forked.run([str(SCRIPT)], input=json.dumps(jobs), cwd=ROOT)
    assert result.returncode == 0, result.stderr[-3000:]
    return json.loads(result.stdout)


def op_swap(*entries: tuple) -> dict:
    """A swap section from (op_name, backward_prefetch, layers)."""
    names = ("op_name", "backward_prefetch", "layers")
    return {"swap": True, "op_swap": [dict(zip(names, entry, strict=True)) for entry in entries]}


def layer_swap(*entries: tuple) -> dict:
    """A swap section from (backward_prefetch, layers)."""
    names = ("backward_prefetch", "layers")
    return {"swap": True, "layer_swap": [dict(zip(names, entry, strict=True)) for entry in entries]}


def pairs_of(result: dict) -> Counter:
    """(layer, cell, primitive, prefetch) -> number of pairs; every copy must be one half of a pair."""
    assert result["num_copies_out"] == result["num_copies_in"] == len(result["pairs"])
    return Counter(tuple(pair) for pair in result["pairs"])


def expected(*parts: tuple) -> Counter:
    """The same from (layers, prefetch, [(cell, primitive), ...])."""
    return Counter(
        (layer, cell, primitive, prefetch)
        for layers, prefetch, operators in parts
        for layer in layers
        for cell, primitive in operators
    )
