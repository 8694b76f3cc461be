"""Write `mindswap/data/families/*.json` from real MindFormers: what `mindswap check` knows without it.

    python tools/make_family_tables.py            # writes the tables
    python tools/make_family_tables.py --check    # exit code 1 if a table is out of date

Each variant is built from a small YAML, compiled once with every primitive tagged with its path,
and read back: the tree from the network, the uses from the graph.
"""

import argparse
import itertools
import json
import subprocess
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parent.parent
TABLES = ROOT / "mindswap" / "data" / "families"

LLAMA_YAML = ROOT / "configs" / "llama2_7b" / "cpu" / "case1_default_swap.yaml"
QWEN3_YAML = ROOT / "tests" / "data" / "qwen3_small.yaml"
QWEN3_MOE_YAML = ROOT / "tests" / "data" / "qwen3_moe_small.yaml"

# family -> YAML to start from, architectures, path of the layers, keys of model_config that change
# the layer: every combination of their values is a variant; the first value is MindFormers' default.
FAMILIES = {
    "llama": {
        "yaml": LLAMA_YAML,
        "architectures": ["LlamaForCausalLM"],
        "layers_path": "model.layers",
        "keys": {"use_flash_attention": [False, True], "qkv_concat": [False, True], "fused_rms_norm": [True, False]},
    },
    "qwen3": {
        "yaml": QWEN3_YAML,
        "architectures": ["Qwen3ForCausalLM"],
        "layers_path": "model.decoder.layers",
        "keys": {"use_flash_attention": [True, False], "use_contiguous_weight_layout_attention": [False, True]},
    },
    # Every layer has experts. What else changes the layer has no variant here: it is not known without MindFormers.
    "qwen3_moe": {
        "yaml": QWEN3_MOE_YAML,
        "architectures": ["Qwen3MoeForCausalLM"],
        "layers_path": "model.decoder.layers",
        "keys": {
            "use_flash_attention": [True],
            "use_contiguous_weight_layout_attention": [False],
            "moe_token_dispatcher_type": ["alltoall"],
            "moe_router_enable_expert_bias": [False],
            "moe_router_force_expert_balance": [False],
            "moe_shared_expert_intermediate_size": [None],
        },
    },
}


def make_table(family: str) -> dict:
    """The table of one family; each variant is built in a process of its own."""
    spec = FAMILIES[family]
    config = yaml.safe_load(spec["yaml"].read_text())
    config.pop("mindswap", None)  # the real attention, not the stand-in
    variants = []
    for values in itertools.product(*spec["keys"].values()):
        when = dict(zip(spec["keys"], values, strict=True))
        config["model"]["model_config"].update(when)
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "variant.yaml"
            path.write_text(yaml.safe_dump(config))
            command = [sys.executable, __file__, "--variant", str(path)]
            result = subprocess.run(command, check=True, capture_output=True, text=True)
        variants.append({"when": when, **json.loads(result.stdout)})
    return {
        "family": family,
        "architectures": spec["architectures"],
        "layers_path": spec["layers_path"],
        "generated_with": {name: version(name) for name in ("mindspore", "mindformers")},
        "defaults": {key: values[0] for key, values in spec["keys"].items()},
        "variants": variants,
    }


def print_variant(config_path: str) -> None:
    """Tree and uses of layer 1 of the network of one YAML, as JSON on standard output."""
    sys.path.insert(0, str(ROOT))
    from mindswap.adapters.quiet import quiet

    with quiet():
        from mindswap.adapters.mindformers import read_operator_uses

        tree, uses = read_operator_uses(config_path, layer_index=1)
    print(json.dumps({"tree": _tree_to_json(tree), "uses": uses}))


def _tree_to_json(node) -> dict:
    entry = {"name": node.name, "type": node.type_name}
    if node.is_primitive:
        return {**entry, "primitive": True}
    return {**entry, "children": [_tree_to_json(child) for child in node.children]}


def main() -> int:
    """Write or check every table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="compare with the tables, write nothing")
    parser.add_argument("--variant", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.variant:
        print_variant(args.variant)
        return 0
    outdated = []
    for family in FAMILIES:
        path = TABLES / f"{family}.json"
        text = json.dumps(make_table(family), indent=1) + "\n"
        if args.check and (not path.exists() or path.read_text() != text):
            outdated.append(str(path))
        elif not args.check:
            TABLES.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
            print(f"wrote {path}")
    for name in outdated:
        print(f"out of date: {name}; run python tools/make_family_tables.py", file=sys.stderr)
    return 1 if outdated else 0


if __name__ == "__main__":
    sys.exit(main())
