"""Which modules of which layers options ask to be recomputed or offloaded.

Source: see `options` and `placement`; of MindSpeed also core/memory/swap_attention/adaptor.py and
core/transformer/moe (fb_overlap/modules/experts.py).
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from mindswap.policy.formats.megatron.options import MegatronOptions
from mindswap.policy.formats.megatron.placement import LayerPlacement
from mindswap.policy.model import ALL_LAYERS, NO_LAYERS, Layers

# With the newer models of Megatron-LM, which have no module of another of its names, --swap-attention takes this one.
DEFAULT_SWAPPED = "self_attention"


@dataclass(frozen=True)
class ModuleRequest:
    """Modules of some layers that an option requests to recompute or offload."""

    field: str  # attribute of the option
    purpose: str  # section of data/megatron/modules.json with the names: `recompute`, `offload` or `mindspeed`
    modules: tuple[str, ...]  # their names
    layers: Layers = ALL_LAYERS  # layers of the model
    is_offloaded: bool = False  # offloaded; else recomputed


def full_recompute_layers(options: MegatronOptions, placement: LayerPlacement) -> Layers:
    """Return the layers of the model that are recomputed as a whole."""
    if options.granularity != "full" or options.swap_attention:
        return NO_LAYERS
    if options.recompute_method == "block":
        return _counted(options, placement, options.num_recomputed)
    return ALL_LAYERS


def module_requests(options: MegatronOptions, placement: LayerPlacement) -> Iterator[ModuleRequest]:
    """Yield the requests of each option, without the layers that are fully recomputed; some may have no layers."""
    num_layers = placement.num_model_layers
    recomputed_layers = {*full_recompute_layers(options, placement).resolve(num_layers)}
    for request in _requests(options, placement):
        if not request.is_offloaded and recomputed_layers:
            remaining_layers = Layers(
                index for index in request.layers.resolve(num_layers) if index not in recomputed_layers
            )
            yield replace(request, layers=remaining_layers)
        elif request.layers:
            yield request


def _requests(options: MegatronOptions, placement: LayerPlacement) -> Iterator[ModuleRequest]:
    if options.granularity == "selective":
        yield ModuleRequest("recompute_modules", "recompute", options.recompute_modules or ("core_attn",))
    if options.fine_grained_activation_offloading:
        yield ModuleRequest("offload_modules", "offload", options.offload_modules or (), is_offloaded=True)
    if options.recompute_activation_function:
        layers = _function_layers(options, placement, options.recompute_activation_function_num_layers)
        yield ModuleRequest("recompute_activation_function", "mindspeed", ("activation",), layers)
    if options.recompute_norm:
        layers = _function_layers(options, placement, options.recompute_norm_num_layers)
        yield ModuleRequest("recompute_norm", "recompute", ("layernorm",), layers)
    if options.recompute_mla_up_proj:
        yield ModuleRequest("recompute_mla_up_proj", "recompute", ("mla_up_proj",))
    if options.mla_swap_core_attn_out:
        yield ModuleRequest("mla_swap_core_attn_out", "offload", ("attn_proj",), is_offloaded=True)
    if options.swap_attention:
        yield from _swap_attention(options, placement)
    if options.zero_memory:
        yield from _zero_memory(options, placement)


def _zero_memory(options: MegatronOptions, placement: LayerPlacement) -> Iterator[ModuleRequest]:
    """Yield experts that are recomputed whole (level1, in the first layers of a stage), and activation functions."""
    num_layers, count, recomputed_layers = placement.num_model_layers, options.moe_zero_memory_num_layers, NO_LAYERS
    if options.zero_memory == "level1":
        recomputed_layers = ALL_LAYERS
        if count is not None:
            recomputed_layers = placement.model_layers(placement.first_layers(count, is_per_stage=True))
    other_layers = Layers(index for index in range(num_layers) if index not in recomputed_layers)
    yield ModuleRequest("moe_zero_memory", "recompute", ("moe",), recomputed_layers)
    yield ModuleRequest(
        "moe_zero_memory", "mindspeed", ("expert_activation",), other_layers if recomputed_layers else ALL_LAYERS
    )


def _counted(options: MegatronOptions, placement: LayerPlacement, count: int) -> Layers:
    """Return the first layers of each chunk or stage, without the last layer of all with --recompute-in-advance."""
    layers = placement.first_layers(count, is_per_stage=options.enable_recompute_layers_per_pp_rank)
    last = placement.layout.num_layers - 1 if options.recompute_in_advance else -1
    return placement.model_layers(layer for layer in layers if layer != last)


def _function_layers(options: MegatronOptions, placement: LayerPlacement, count: int | None) -> Layers:
    """Return the layers whose activation function or norm is recomputed: those after the wholly recomputed ones."""
    first = options.recompute_num_layers or 0
    priorities = placement.priorities(is_per_stage=options.enable_recompute_layers_per_pp_rank)
    return placement.model_layers(
        layer for layer, priority in priorities if priority >= first and (count is None or priority < first + count)
    )


def _swap_attention(options: MegatronOptions, placement: LayerPlacement) -> Iterator[ModuleRequest]:
    """Yield the offloaded modules, and the multi-layer perceptrons that are recomputed with them."""
    is_per_stage = options.enable_recompute_layers_per_pp_rank
    every = placement.largest_count(is_per_stage=is_per_stage)
    recomputed = min(options.recompute_num_layers or 0, every)
    if options.recompute_method == "uniform":
        recomputed = every
    offloaded = every if options.recompute_method is None else recomputed
    modules = tuple(name.strip() for name in (options.swap_modules or DEFAULT_SWAPPED).split(","))
    layers = placement.model_layers(placement.first_layers(offloaded, is_per_stage=is_per_stage))
    yield ModuleRequest("swap_attention", "mindspeed", modules, layers, is_offloaded=True)
    yield ModuleRequest("swap_attention", "mindspeed", ("mlp",), _counted(options, placement, recomputed))
