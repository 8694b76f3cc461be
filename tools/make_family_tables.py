"""Write `mindswap/data/families/*.json` from real MindFormers: what `mindswap check` knows without it.

    python tools/make_family_tables.py            # writes the tables
    python tools/make_family_tables.py --check    # exit code 1 if a table is out of date

Each variant is built from a small YAML, compiled once with the primitives of a layer tagged with their paths,
and read back: the tree from the network, the uses from the graph.
"""

import argparse
import itertools
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parent.parent
TABLES = ROOT / "mindswap" / "data" / "families"

LLAMA_YAML = ROOT / "configs" / "llama2_7b" / "cpu" / "case1_default_swap.yaml"
QWEN3_YAML = ROOT / "tests" / "data" / "qwen3_small.yaml"
QWEN3_MOE_YAML = ROOT / "tests" / "data" / "qwen3_moe_small.yaml"

DEEPSEEK_YAML = ROOT / "configs" / "deepseek3" / "cpu" / "op_swap.yaml"

EXPERTS = {
    "moe_token_dispatcher_type": ["alltoall"],
    "moe_router_force_expert_balance": [False],
}
LATENT_ATTENTION = {
    "mla_qkv_concat": [True, False],
    "qk_layernorm": [True],
    "use_interleaved_weight_layout_mlp": [True],
    "moe_router_enable_expert_bias": [True],
    "moe_layer_freq": [1],
    **EXPERTS,
}
# Numbers that switch something on: the least of them that does, and the default of the class of the configuration.
DEEPSEEK_SWITCHES = {"q_lora_rank": [1, 1536], "n_shared_experts": [1, 1], "n_group": [2, 8]}

# As few layers as have a dense one and one with experts: only the second is read.
NUM_LAYERS = 2
NUM_LAYERS_KEYS = {"num_layers", "num_hidden_layers"}
# Keys of the number of layers of multi-token prediction, its default, and the cell around which such a layer is.
PREDICTION = {
    "keys": ["num_nextn_predict_layers", "mtp_num_layers", "mtp_depth"], "default": 1, "layer": "transformer_layer",
}  # fmt: skip

# family -> YAML to start from, what is different in its model (`arch`, or keys of model_config), architectures, path of
# the layers, keys of model_config that change the layer: every combination of their values is a variant; the first
# value is MindFormers' default, or the only one that trains. `dense` is the key that says how many layers have no
# experts, and its default. What else changes the layer has no variant here: it is not known without MindFormers.
FAMILIES = {
    "llama": {
        "yaml": LLAMA_YAML,
        "architectures": ["LlamaForCausalLM"],
        "layers_path": "model.layers",
        "keys": {"use_flash_attention": [False, True], "qkv_concat": [False, True], "fused_rms_norm": [True, False]},
    },
    "glm2": {
        "yaml": LLAMA_YAML,
        "model": {
            "arch": {"type": "ChatGLM2ForConditionalGeneration"},
            "model_config": {
                "type": "ChatGLM2Config", "num_layers": 2, "padded_vocab_size": 260, "hidden_size": 64,
                "ffn_hidden_size": 128, "kv_channels": 16, "num_attention_heads": 4, "seq_length": 64, "rmsnorm": True,
                "multi_query_attention": True, "multi_query_group_num": 2, "add_qkv_bias": True,
                "post_layer_norm": True,
                "apply_query_key_layer_scaling": True, "compute_dtype": "float32", "layernorm_compute_type": "float32",
                "param_init_type": "float32", "rotary_dtype": "float32", "eos_token_id": 1, "pad_token_id": 0,
            },
        },
        "architectures": ["ChatGLM2ForConditionalGeneration"],
        "layers_path": "transformer.encoder.layers",
        "keys": {"use_flash_attention": [True], "qkv_concat": [False, True], "mlp_concat": [True], "rmsnorm": [True]},
    },
    "qwen3": {
        "yaml": QWEN3_YAML,
        "architectures": ["Qwen3ForCausalLM"],
        "layers_path": "model.decoder.layers",
        "keys": {"use_flash_attention": [True, False], "use_contiguous_weight_layout_attention": [False, True]},
    },
    "telechat3": {
        "yaml": QWEN3_YAML,
        "model": {"model_config": {"model_type": "telechat3", "architectures": ["TeleChat3ForCausalLM"]}},
        "architectures": ["TeleChat3ForCausalLM"],
        "layers_path": "model.decoder.layers",
        "keys": {
            "hidden_act": ["silu", "swiglu"],
            "qk_layernorm": [False],
            "use_flash_attention": [True],
            "use_contiguous_weight_layout_attention": [False],
        },
    },
    "qwen3_moe": {
        "yaml": QWEN3_MOE_YAML,
        "architectures": ["Qwen3MoeForCausalLM"],
        "layers_path": "model.decoder.layers",
        "keys": {
            "use_flash_attention": [True],
            "use_contiguous_weight_layout_attention": [False],
            "moe_router_enable_expert_bias": [False],
            **EXPERTS,
            "moe_shared_expert_intermediate_size": [None],
        },
    },
    "deepseek3": {
        "yaml": DEEPSEEK_YAML,
        "architectures": ["DeepseekV3ForCausalLM"],
        "layers_path": "model.decoder.layers",
        "dense": ["first_k_dense_replace", 3],
        "switches": DEEPSEEK_SWITCHES,
        "keys": {"hidden_act": ["silu"], "use_flash_attention": [True], **LATENT_ATTENTION},
        "on": ["q_lora_rank", "n_shared_experts", "n_group"],
    },
    "telechat3_moe": {
        "yaml": DEEPSEEK_YAML,
        "model": {
            "model_config": {
                "model_type": "telechat3_moe", "architectures": ["TeleChat3MoeForCausalLM"], "n_group": 0,
                "topk_group": 0,
            },
        },
        "architectures": ["TeleChat3MoeForCausalLM"],
        "layers_path": "model.decoder.layers",
        "dense": ["first_k_dense_replace", 3],
        "switches": DEEPSEEK_SWITCHES,
        "keys": {"hidden_act": ["silu", "fusedswiglu"], "use_flash_attention": [True], **LATENT_ATTENTION,
                 "mla_qkv_concat": [False]},
        "on": ["q_lora_rank", "n_shared_experts"],
    },
}  # fmt: skip


def start_python(words: list[str]) -> str:
    """Output of a Python of its own."""
    return subprocess.run([sys.executable, *words], check=True, capture_output=True, text=True).stdout


def make_table(family: str, start: Callable[[list[str]], str] = start_python, num_variants: int | None = None) -> dict:
    """The table of one family; its first variants, or all of them, are built in one process, started with `start`."""
    spec = FAMILIES[family]
    config = yaml.safe_load(spec["yaml"].read_text())
    config.pop("mindswap", None)  # the real attention, not the stand-in
    for key, section in spec.get("model", {}).items():
        is_other_class = "type" in section  # another class: nothing of the old one holds
        config["model"][key] = section if is_other_class else {**config["model"][key], **section}
    model_config = config["model"]["model_config"]
    model_config.update(dict.fromkeys(NUM_LAYERS_KEYS & model_config.keys(), NUM_LAYERS))
    combinations = [
        dict(zip(spec["keys"], values, strict=True)) for values in itertools.product(*spec["keys"].values())
    ][:num_variants]
    with tempfile.TemporaryDirectory() as folder:
        paths = []
        for index, when in enumerate(combinations):
            config["model"]["model_config"].update(when)
            paths.append(Path(folder) / f"{index}.yaml")
            paths[-1].write_text(yaml.safe_dump(config))
        kinds = ["--dense"] if "dense" in spec else []
        printed = start([__file__, *kinds, "--variants", *map(str, paths)])
    switches = spec.get("switches", {})
    on = {key: key in spec.get("on", ()) for key in switches}
    variants = json.loads(printed)
    around = [variant.pop("prediction") for variant in variants if "prediction" in variant]
    if any(tree != around[0] for tree in around):
        raise SystemExit("variants differ in multi-token prediction")
    return {
        "family": family,
        "architectures": spec["architectures"],
        "layers_path": spec["layers_path"],
        "generated_with": {name: version(name) for name in ("mindspore", "mindformers")},
        **({"dense": spec["dense"], "switches": switches} if "dense" in spec else {}),
        **({"prediction": {**PREDICTION, "tree": around[0]}} if around else {}),
        "defaults": {key: values[0] for key, values in spec["keys"].items()},
        "variants": [{"when": {**when, **on}, **variant} for when, variant in zip(combinations, variants, strict=True)],
    }


def print_variants(config_paths: list[str], has_dense: bool) -> None:
    """Tree and uses of layer 1 of the network of each YAML, with the dense layer 0 if there is one, as JSON."""
    sys.path.insert(0, str(ROOT))
    from mindswap.adapters.quiet import quiet

    variants = []
    with quiet():
        for path in config_paths:
            trees, uses = read_operator_uses(path, (0, 1) if has_dense else (1,))
            dense = {"dense_tree": _tree_to_json(trees.layers[0])} if has_dense else {}
            around = {"prediction": _prediction_to_json(trees)} if trees.mtp_layer else {}
            variants.append({"tree": _tree_to_json(trees.layers[-1]), **dense, "uses": uses, **around})
    print(json.dumps(variants))


def read_operator_uses(config_path: str, layer_indices: tuple[int, ...]):
    """Trees of some layers and of multi-token prediction, and which primitives of a layer read which output.

    Every primitive carries its path into the compile as an attribute. That keeps the compiler from
    merging equal operators, so this graph tells who uses what and is not a measure of memory.

    Returns:
        The trees, and primitive path -> sorted paths of the primitives that use its output, in any of the layers.
    """
    from mindswap.adapters.graph.apply import iterate_primitives
    from mindswap.adapters.graph.build import build_network
    from mindswap.adapters.graph.mindformers import compile_network, trees_of_network
    from mindswap.adapters.graph.mindspore import enable_lazy_inline, find_layers, find_lazy_inline_cell
    from mindswap.graph.load import PATH_TAG
    from mindswap.policy.cell_tree import LayerTrees
    from mindswap.policy.model import Policy

    network, config = build_network(config_path, Policy())
    every_tree = trees_of_network(network, {})
    trees = [every_tree.layers[index] for index in layer_indices]
    for position, index in enumerate(layer_indices):
        for path, primitive in iterate_primitives(find_layers(network)[index]):
            primitive.add_prim_attr(PATH_TAG, f"{position}.{'.'.join(path)}")
    enable_lazy_inline(find_lazy_inline_cell(network))
    uses: dict[str, set[str]] = {}
    for name, users in _users_by_path(compile_network(network, config)).items():
        layer, _, name_in_layer = name.partition(".")
        users_in_layer = [user.partition(".")[2] for user in users if user.startswith(f"{layer}.")]
        if users_in_layer:
            uses.setdefault(name_in_layer, set()).update(users_in_layer)
    layer_trees = LayerTrees(tuple(trees), {}, "the real network", every_tree.mtp_layer)
    return layer_trees, {path: sorted(users) for path, users in sorted(uses.items())}


def _users_by_path(graph) -> dict[str, set[str]]:
    """Path of an operator -> paths of the operators that use its output in forward.

    Operators of the compiler's own (`TupleGetItem`, `Depend`, ...) have none and are looked through.
    """
    from mindswap.graph.ops import COMPILER_OPS

    uses: dict[str, set[str]] = {}
    for node in graph.forward:
        pending = list(node.inputs) if node.paths else []
        for name in pending:  # grows behind
            producer = graph.index.forward_nodes.get(name)
            if producer is not None and producer.paths:
                for path in producer.paths:
                    uses.setdefault(path, set()).update(node.paths)
            elif producer is not None and producer.op in COMPILER_OPS:
                pending += [source for source in producer.inputs if source not in pending]
    return uses


def _prediction_to_json(trees) -> dict:
    """The layer of multi-token prediction, without what is in the one that it is around: that is as the last."""
    tree = _tree_to_json(trees.mtp_layer)
    inner = next(child for child in tree["children"] if child["name"] == PREDICTION["layer"])
    if inner["children"] != _tree_to_json(trees.layers[-1])["children"]:
        raise SystemExit("the layer of multi-token prediction is not as the last layer")
    inner["children"] = []
    return tree


def _tree_to_json(node) -> dict:
    entry = {"name": node.name, "type": node.type_name}
    if node.is_primitive:
        return {**entry, "primitive": True}
    return {**entry, "children": [_tree_to_json(child) for child in node.children]}


def expand_outline(table: dict) -> dict:
    """A table with its trees in full, from the outline of a file; turns `make_outline` round.

    `norm:RmsNorm attention=LLamaAttention/2` are two children, a primitive and a cell; behind `/` is the number of the
    kind, where a class has several. `uses` of all variants are with the table.
    """
    cells, common = table["cells"], table["uses"]

    def primitive(name: str, kind: str) -> dict:
        return {"name": name, "type": kind, "primitive": True}

    def tree(name: str, kind: str) -> dict:
        children = [
            tree(*child.split("=")) if "=" in child else primitive(*child.split(":")) for child in cells[kind].split()
        ]
        return {"name": name, "type": kind.partition("/")[0], "children": children}

    def variant(outline: dict) -> dict:
        uses = {path: users.split() for path, users in sorted((common | outline["uses"]).items())}
        return (
            outline | {key: tree("", outline[key]) for key in ("tree", "dense_tree") if key in outline} | {"uses": uses}
        )

    expanded = {key: value for key, value in table.items() if key not in ("cells", "uses")}
    if "prediction" in table:
        expanded["prediction"] = table["prediction"] | {"tree": tree("", table["prediction"]["tree"])}
    return expanded | {"variants": [variant(outline) for outline in table["variants"]]}


def make_outline(table: dict) -> dict:
    """The table as its file has it, which `policy.cell_tree` reads: every kind of cell once."""
    cells: dict[str, str] = {}

    def kind_of(tree: dict) -> str:
        children = " ".join(
            f"{child['name']}:{child['type']}" if child.get("primitive") else f"{child['name']}={kind_of(child)}"
            for child in tree.get("children", ())
        )
        kinds = itertools.chain([tree["type"]], (f"{tree['type']}/{number}" for number in itertools.count(2)))
        return next(kind for kind in kinds if cells.setdefault(kind, children) == children)

    variants = []
    for variant in table["variants"]:
        trees = {key: kind_of(variant[key]) for key in ("tree", "dense_tree") if key in variant}
        variants.append(
            {**variant, **trees, "uses": {path: " ".join(users) for path, users in variant["uses"].items()}}
        )
    common = dict(sorted(set.intersection(*(set(variant["uses"].items()) for variant in variants))))
    for variant in variants:
        variant["uses"] = {path: users for path, users in variant["uses"].items() if path not in common}
    head = {key: value for key, value in table.items() if key != "variants"}
    if "prediction" in table:
        head["prediction"] = {**table["prediction"], "tree": kind_of(table["prediction"]["tree"])}
    return {**head, "cells": cells, "uses": common, "variants": variants}


def main() -> int:
    """Write or check every table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="compare with the tables, write nothing")
    parser.add_argument("--only", choices=FAMILIES, help="one family")
    parser.add_argument("--variants", nargs="+", help=argparse.SUPPRESS)
    parser.add_argument("--dense", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.variants:
        print_variants(args.variants, args.dense)
        return 0
    outdated = []
    for family in [args.only] if args.only else FAMILIES:
        path = TABLES / f"{family}.json"
        text = json.dumps(make_outline(make_table(family)), indent=1) + "\n"
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
