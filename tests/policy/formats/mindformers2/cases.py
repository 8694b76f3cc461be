# ruff: noqa: E501 one case to a line
"""Configurations whose outcome in mindformers 2.1.0 is recorded in `expected.json`.

`tools/record_pynative.py` made that file: it runs `TrainConfig.from_dict` and `apply_ac` of the wheel (downloaded with
`pip download --no-deps mindformers==2.1.0`, never installed) on four layers of OUTLINE, with stand-ins for
MindSpore's `nn.Cell` and for the wrappers of hyper_parallel, which only note what they wrap.
"""

__all__ = ["CASES", "HEADER", "OUTLINE", "text_of"]

# What can be named in a layer of the toy model.
_LINEAR = {"calls": ["matmul"]}
OUTLINE = {
    "calls": ["add"],
    "cells": {
        "input_layernorm": {"calls": ["norm"]},
        "self_attention": {
            "calls": ["cat"],
            "methods": ["get_qkv"],
            "cells": {"linear_qkv": _LINEAR, "core_attention": {"calls": ["flash_attention"]}, "linear_proj": _LINEAR},
        },
        "pre_mlp_layernorm": {"calls": ["norm"]},
        "mlp": {
            "calls": ["mul"],
            "cells": {"linear_fc1": _LINEAR, "activation_func": {"calls": ["silu"]}, "linear_fc2": _LINEAR},
        },
    },
}
HEADER = "training: {steps: 1}\nparallelism: {}\nmodel: {model_type: toy, architectures: Toy, num_hidden_layers: 4}\n"

# Name -> the three sections. `@pp2` at the end of a name: with two pipeline stages.
CASES = {
    "nothing": "",
    "swap off": "swap: {enable: False, default_prefetch: 9, layer_swap: [{layers: [99]}]}",
    "swap off with a single mapping": "swap: {enable: False, layer_swap: {layers: [0]}}",
    "one layer": "swap: {enable: True, layer_swap: [{layers: [0]}]}",
    "a range": "swap: {enable: True, layer_swap: [{layers: ['0-2']}]}",
    "a bare range": "swap: {enable: True, layer_swap: [{layers: [0-2]}]}",
    "mixed layers": "swap: {enable: True, layer_swap: [{layers: [0, '2']}]}",
    "blanks around": "swap: {enable: True, layer_swap: [{layers: [' 1 ']}]}",
    "blanks inside": "swap: {enable: True, layer_swap: [{layers: ['0 - 1']}]}",
    "prefetch 2": "swap: {enable: True, default_prefetch: 2, layer_swap: [{layers: [0-1]}]}",
    "prefetch 3": "swap: {enable: True, default_prefetch: 3, layer_swap: [{layers: [0]}]}",
    "prefetch too large": "swap: {enable: True, default_prefetch: 4, layer_swap: [{layers: [0]}]}",
    "prefetch 0": "swap: {enable: True, default_prefetch: 0, layer_swap: [{layers: [0]}]}",
    "prefetch negative": "swap: {enable: True, default_prefetch: -1, layer_swap: [{layers: [0]}]}",
    "prefetch text": "swap: {enable: True, default_prefetch: '1', layer_swap: [{layers: [0]}]}",
    "prefetch bool": "swap: {enable: True, default_prefetch: True, layer_swap: [{layers: [0]}]}",
    "prefetch null": "swap: {enable: True, default_prefetch: null, layer_swap: [{layers: [0]}]}",
    "last layer": "swap: {enable: True, layer_swap: [{layers: [3]}]}",
    "last two layers": "swap: {enable: True, default_prefetch: 2, layer_swap: [{layers: [2]}]}",
    "last layer of op_swap": "swap: {enable: True, op_swap: [{op_name: mlp, layers: [0-3]}]}",
    "no such layer": "swap: {enable: True, layer_swap: [{layers: [4]}]}",
    "descending": "swap: {enable: True, layer_swap: [{layers: [2, 0]}]}",
    "twice the same": "swap: {enable: True, layer_swap: [{layers: [0, 0]}]}",
    "overlap": "swap: {enable: True, layer_swap: [{layers: [0-1, 1-2]}]}",
    "start above end": "swap: {enable: True, layer_swap: [{layers: ['2-1']}]}",
    "negative layer": "swap: {enable: True, layer_swap: [{layers: [-1]}]}",
    "float layer": "swap: {enable: True, layer_swap: [{layers: [1.0]}]}",
    "bool layer": "swap: {enable: True, layer_swap: [{layers: [True]}]}",
    "null layer": "swap: {enable: True, layer_swap: [{layers: [null]}]}",
    "layers True": "swap: {enable: True, layer_swap: [{layers: True}]}",
    "layers text": "swap: {enable: True, layer_swap: [{layers: '0-2'}]}",
    "layers missing": "swap: {enable: True, layer_swap: [{backward_prefetch: 1}]}",
    "no layers": "swap: {enable: True, layer_swap: [{layers: []}]}",
    "entry no mapping": "swap: {enable: True, layer_swap: [0]}",
    "single mapping": "swap: {enable: True, layer_swap: {layers: [0]}}",
    "single op mapping": "swap: {enable: True, op_swap: {op_name: mlp, layers: [0]}}",
    "swap list": "swap: [enable]",
    "swap True": "swap: True",
    "swap null": "swap: null",
    "enable text": "swap: {enable: 'yes'}",
    "enable 1": "swap: {enable: 1}",
    "unknown key": "swap: {enable: True, prefetch: 1}",
    "old key": "swap: {swap: True}",
    "two layer entries": "swap: {enable: True, layer_swap: [{layers: [0]}, {layers: [1]}]}",
    "entry prefetch": "swap: {enable: True, layer_swap: [{layers: [0], backward_prefetch: 3}]}",
    "one operator": r"swap: {enable: True, op_swap: [{op_name: 'mlp\.mul', layers: [0-2]}]}",
    "op list": "swap: {enable: True, op_swap: [{op_name: [mlp], layers: [0]}]}",
    "op empty": "swap: {enable: True, op_swap: [{op_name: ' ', layers: [0]}]}",
    "op missing": "swap: {enable: True, op_swap: [{layers: [0]}]}",
    "parent and child": r"swap: {enable: True, op_swap: [{op_name: 'mlp\.linear_fc1', layers: [0]}, {op_name: mlp, layers: [0]}]}",
    "star": "swap: {enable: True, op_swap: [{op_name: '.*', layers: [1]}]}",
    "star crosses levels": "swap: {enable: True, op_swap: [{op_name: '.*linear.*', layers: [0-1]}]}",
    "plain dot": "swap: {enable: True, op_swap: [{op_name: 'mlp.mul', layers: [0]}]}",
    "method": r"swap: {enable: True, op_swap: [{op_name: 'self_attention\.get_qkv', layers: [0]}]}",
    "deep operator": r"swap: {enable: True, op_swap: [{op_name: 'mlp\.linear_fc1\.matmul', layers: [0]}]}",
    "no match": "swap: {enable: True, op_swap: [{op_name: attention, layers: [0]}]}",
    "bad regex": "swap: {enable: True, op_swap: [{op_name: '*mlp', layers: [0]}]}",
    "same name twice": "swap: {enable: True, op_swap: [{op_name: mlp, layers: [0]}, {op_name: mlp, layers: [1]}]}",
    "layer and op": "swap: {enable: True, layer_swap: [{layers: [0]}], op_swap: [{op_name: mlp, layers: [0-1]}]}",
    "order of patterns": "swap: {enable: True, op_swap: [{op_name: self_attention, layers: [0]}, {op_name: mlp, layers: [0]}]}",
    "swap in stages @pp2": "swap: {enable: True, layer_swap: [{layers: [0]}]}",
    "full": "recompute: {mode: full, full_recompute_layer: [0-3]}",
    "full without layers": "recompute: {mode: full}",
    "full with empty layers": "recompute: {mode: full, full_recompute_layer: []}",
    "full out of range": "recompute: {mode: full, full_recompute_layer: [0-4]}",
    "full layers text": "recompute: {mode: full, full_recompute_layer: '0-3'}",
    "mode None": "recompute: {mode: None, full_recompute_layer: [99], select_module: {mlp: [77]}, exclude_op: {mlp: [9]}}",
    "mode null": "recompute: {mode: null}",
    "mode True": "recompute: {mode: True}",
    "mode all": "recompute: {mode: all}",
    "recompute unknown key": "recompute: {mode: None, layers: [0]}",
    "select": "recompute: {mode: select, select_module: {mlp: [0-1], self_attention: [1]}}",
    "select missing": "recompute: {mode: select}",
    "select list": "recompute: {mode: select, select_module: [mlp]}",
    "select scalar layers": "recompute: {mode: select, select_module: {mlp: 0}}",
    "select key number": "recompute: {mode: select, select_module: {1: [0]}}",
    "select out of range": "recompute: {mode: select, select_module: {mlp: [4]}}",
    "select unchecked": "recompute: {mode: select, full_recompute_layer: [0], select_module: {mlp: ['0-9']}}",
    "select operator": r"recompute: {mode: select, select_module: {'mlp\.mul': [0], 'mlp\.linear.*': [0]}}",
    "select no match": "recompute: {mode: select, select_module: {feed_forward: [0]}}",
    "select with full": "recompute: {mode: full, full_recompute_layer: [0], select_module: {mlp: [77]}}",
    "select list with full": "recompute: {mode: full, full_recompute_layer: [0], select_module: [mlp]}",
    "exclude": r"recompute: {mode: full, full_recompute_layer: [0-1], exclude_op: {'self_attention\.core_attention': [0]}}",
    "exclude list": "recompute: {mode: full, full_recompute_layer: [0], exclude_op: [mlp]}",
    "exclude list with None": "recompute: {mode: None, exclude_op: [mlp]}",
    "exclude then select below": r"recompute: {mode: select, select_module: {'mlp\.linear_fc1': [0]}, exclude_op: {mlp: [0]}}",
    "exclude no match": "recompute: {mode: full, full_recompute_layer: [0], exclude_op: {attention: [0]}}",
    "exclude without recompute": "recompute: {exclude_op: {mlp: [0]}}\nrecompute_comm: {enable: True, select_module: {'mlp\\.mul': [0]}}",
    "comm": r"recompute_comm: {enable: True, select_module: {'self_attention\.cat': [0-1]}}",
    "comm cell": r"recompute_comm: {enable: True, select_module: {'mlp\.linear_fc1': [0], 'mlp\.mul': [0]}}",
    "comm top cell": "recompute_comm: {enable: True, select_module: {mlp: [0]}}",
    "comm missing": "recompute_comm: {enable: True}",
    "comm list": "recompute_comm: {enable: True, select_module: [mlp]}",
    "comm in full layer": "recompute: {mode: full, full_recompute_layer: [0]}\nrecompute_comm: {enable: True, select_module: {add: [0-1]}}",
    "comm below select": "recompute: {mode: select, select_module: {mlp: [0]}}\nrecompute_comm: {enable: True, select_module: {'mlp\\.mul': [0-1]}}",
    "swap of a recomputed layer": "recompute: {mode: full, full_recompute_layer: [0-1]}\nswap: {enable: True, layer_swap: [{layers: [0-2]}]}",
    "op swap in a recomputed layer": "recompute: {mode: full, full_recompute_layer: [0]}\nswap: {enable: True, op_swap: [{op_name: mlp, layers: [0-1]}]}",
    "op swap below a recomputed cell": "recompute: {mode: select, select_module: {mlp: [0]}}\nswap: {enable: True, op_swap: [{op_name: 'mlp\\.linear_fc1', layers: [0-1]}]}",
    "op swap of a recomputed cell": "recompute: {mode: select, select_module: {mlp: [0]}}\nswap: {enable: True, op_swap: [{op_name: mlp, layers: [0]}]}",
    "enabled with nothing": "swap: {enable: True}",
    "old sections": "swap_config: {swap: True}\nrecompute_config: {recompute: True}",
}


def text_of(name: str) -> str:
    """The configuration of a case."""
    header = HEADER.replace("parallelism: {}", "parallelism: {pipeline_parallel: 2}") if "@pp2" in name else HEADER
    return f"{header}{CASES[name]}\n"
