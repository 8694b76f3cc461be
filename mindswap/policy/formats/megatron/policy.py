"""Convert options of Megatron-LM and MindSpeed to a policy with layer indices."""

from dataclasses import dataclass

from mindswap.config.problem import Level, Problem, find_errors, sort_problems
from mindswap.files import package_data
from mindswap.policy.cell_tree import CellNode, LayerTrees, match_pattern
from mindswap.policy.formats.megatron.options import RULE, MegatronOptions, option_name
from mindswap.policy.formats.megatron.placement import place_layers
from mindswap.policy.formats.megatron.requests import (
    ModuleRequest,
    full_recompute_layers,
    module_requests,
)
from mindswap.policy.formats.megatron.validity import find_problems
from mindswap.policy.model import ALL_LAYERS, NO_LAYERS, Layers, OpRecompute, OpSwap, Policy, union_layers
from mindswap.policy.wording import format_layers
from mindswap.units import format_count

# Operators of a model for the module names of Megatron-LM, from data/megatron/modules.json.


@dataclass(frozen=True)
class NamedOperators:
    """Operators that correspond to a module: a pattern, and the layers in which it applies."""

    pattern: str
    layers: Layers


def megatron_module_names() -> dict[str, list[str]]:
    """Return the module names that Megatron-LM accepts, by purpose: `recompute` and `offload`."""
    return package_data("megatron/modules.json")["known"]


def find_operators(module: str, purpose: str, use_legacy: bool, trees: LayerTrees) -> tuple[NamedOperators, ...]:
    """Return the operators of a model that correspond to a module of Megatron-LM.

    Args:
        module: name of the module.
        purpose: `recompute`, `offload`, or `mindspeed` for modules of its options.
        use_legacy: whether the model is a legacy one.
        trees: cell tree of each layer.

    Returns:
        The operators; empty if the model has no counterpart.
    """
    operators = []
    for entry in _modules(purpose, use_legacy).get(module, ()):
        layers = tuple(index for index, tree in enumerate(trees.layers) if _holds(entry, tree))
        if layers:
            is_everywhere = len(layers) == len(trees.layers)
            operators.append(NamedOperators(entry["pattern"], Layers(None if is_everywhere else layers)))
    return tuple(operators)


def available_modules(purpose: str, use_legacy: bool, trees: LayerTrees) -> tuple[str, ...]:
    """Return the module names with a counterpart in a model."""
    names = _modules(purpose, use_legacy)
    return tuple(name for name in names if find_operators(name, purpose, use_legacy, trees))


def _modules(purpose: str, use_legacy: bool) -> dict[str, list[dict[str, str]]]:
    return package_data("megatron/modules.json")["families"]["legacy" if use_legacy else "newer"][purpose]


def _holds(entry: dict[str, str], tree: CellNode) -> bool:
    needed = [entry[key] for key in ("pattern", "needs") if key in entry]
    has_all = all(match_pattern(pattern, tree) for pattern in needed)
    return has_all and not ("unless" in entry and match_pattern(entry["unless"], tree))


@dataclass(frozen=True)
class MegatronPolicy:
    """Policy converted from options."""

    policy: Policy | None  # with swap enabled; None if there is an error
    problems: tuple[Problem, ...]  # errors and warnings
    summary: tuple[str, ...] = ()  # one line per converted setting, in words


def policy_of_megatron(
    options: MegatronOptions, use_legacy: bool, trees: LayerTrees | None, num_prefetch_ops: int
) -> MegatronPolicy:
    """Convert options of Megatron-LM to a policy for a model of MindFormers.

    Args:
        options: the options, including `num_layers`.
        use_legacy: whether the model is a legacy one.
        trees: cell tree of each layer, needed for module names only; None if not known.
        num_prefetch_ops: prefetch distance in operators, which Megatron-LM does not have.
    """
    problems = find_problems(options, megatron_module_names())
    if not find_errors(problems):
        translation = _Translation(options, use_legacy, trees)
        policy = translation.policy(num_prefetch_ops)
        problems += tuple(translation.problems)
        if not find_errors(problems):
            return MegatronPolicy(policy, sort_problems(problems), tuple(translation.summary))
    return MegatronPolicy(None, sort_problems(problems))


# Options that determine the placement of layers.
PLACES = ("noop_layers", "num_layer_list", "pipeline_model_parallel_layout", "schedules_method")


class _Translation:
    def __init__(self, options: MegatronOptions, use_legacy: bool, trees: LayerTrees | None):
        if options.num_layers is None:
            raise AssertionError("a policy for an unknown number of layers")
        self.options = options
        self.use_legacy = use_legacy
        self.trees = trees
        self.placement = place_layers(options, options.num_layers)
        self.problems: list[Problem] = []
        self.summary: list[str] = []

    def policy(self, num_prefetch_ops: int) -> Policy:
        options = self.options
        if any(getattr(options, field) is not None for field in PLACES):
            self.summary.append(
                f"{format_count(self.placement.num_model_layers, 'layer')}; {self.placement.describe()}"
            )
        layer_recompute, output_recompute = self._full()
        recomputed: dict[str, Layers] = {}
        offloaded: dict[str, Layers] = {}
        for request in module_requests(options, self.placement):
            if not request.layers:
                self._add(Level.WARNING, request.field, "has no effect: all its layers are fully recomputed")
                continue
            for pattern, layers in self._operators(request).items():
                _merge_layers(offloaded if request.is_offloaded else recomputed, pattern, layers)
        if options.distribute_saved_activations:
            self.summary.append("distribute-saved-activations: recompute_slice_activation")
            if not self.use_legacy:
                message = "MindFormers refuses it for the newer models (use_legacy: False)"
                self._add(Level.ERROR, "distribute_saved_activations", message, fix="delete it")
        return Policy(
            is_swap_enabled=True,
            op_swap=tuple(OpSwap(pattern, layers, num_prefetch_ops) for pattern, layers in offloaded.items()),
            layer_recompute=layer_recompute,
            select_recompute=tuple(OpRecompute(pattern, layers) for pattern, layers in recomputed.items()),
            recompute_slice_activation=options.distribute_saved_activations,
            output_recompute=output_recompute,
        )

    def _full(self) -> tuple[Layers, Layers]:
        """Return the fully recomputed layers, and those of them whose output is not kept."""
        options, num_layers = self.options, self.placement.layout.num_layers
        count, layers = options.num_recomputed, full_recompute_layers(options, self.placement)
        if not layers:
            return NO_LAYERS, NO_LAYERS
        if options.recompute_method == "block":
            self.summary.append(f"full recompute, block {count}: {format_layers(layers)}")
            return layers, NO_LAYERS
        if count == 1:
            self.summary.append("full recompute, uniform 1: every layer keeps its input")
            return layers, NO_LAYERS
        ends = tuple(self.placement.group_ends(count))
        inner = Layers(tuple(index for index in range(num_layers) if index not in ends))
        self.summary.append(f"full recompute, uniform {count}: {len(ends)} groups, kept is the output of "
                            f"{format_layers(Layers(ends))}")  # fmt: skip
        if inner and not self.use_legacy:
            newer = "MindSpore 2.9 cannot compile the newer models (use_legacy: False)"
            message = f"uniform {count}: {newer} with recompute across layers"
            block_of_all = (
                f"--recompute-method block --recompute-num-layers {max(map(max, self.placement.layout.sizes))}"
            )
            fix = f"{block_of_all}: every layer is recomputed too, and each keeps its input"
            self._add(Level.ERROR, "recompute_num_layers", message, "uniform 1, or block", fix)
        return layers, inner

    def _operators(self, request: ModuleRequest) -> dict[str, Layers]:
        """Map the patterns of modules to layers; a module without a counterpart in the model is a problem."""
        layers_by_pattern: dict[str, Layers] = {}
        field, modules, verb = request.field, request.modules, "offload" if request.is_offloaded else "recompute"
        if self.trees is None:
            fix = "run this where MindFormers is installed"
            self._add(Level.ERROR, field, "the operators of this model are not known", fix=fix)
            return layers_by_pattern
        for module in modules:
            operators = find_operators(module, request.purpose, self.use_legacy, self.trees)
            if not operators:
                possible = ", ".join(available_modules(request.purpose, self.use_legacy, self.trees))
                self._add(Level.ERROR, field, f"nothing in {self.trees.source} is like '{module}'", possible)
            for named in operators:
                _merge_layers(layers_by_pattern, named.pattern, self._common(named.layers, request.layers))
            patterns = ", ".join(named.pattern for named in operators)
            layers_text = "" if request.layers == ALL_LAYERS else f" in {format_layers(request.layers)}"
            self.summary.append(f"{verb} {module}: {patterns}{layers_text}")
        norms = [name for name in ("attn_norm", "mlp_norm") if name in modules]
        if request.is_offloaded and len(norms) == 1:
            message = f"{norms[0]}: 'add' makes the inputs of both norms, so both are offloaded"
            self._add(Level.WARNING, field, message)
        return {pattern: layers for pattern, layers in layers_by_pattern.items() if layers}

    def _common(self, first: Layers, second: Layers) -> Layers:
        """Return the layers that are in both."""
        if ALL_LAYERS in (first, second):
            return second if first == ALL_LAYERS else first
        num_layers = self.placement.num_model_layers
        return Layers(tuple(sorted({*first.resolve(num_layers)} & {*second.resolve(num_layers)})))

    def _add(self, level: Level, field: str, message: str, allowed: str = "", fix: str = "") -> None:
        name = option_name(field)
        self.problems.append(
            Problem(
                location=self.options.location_of(field),
                rule=RULE,
                level=level,
                message=f"{name}: {message}",
                allowed=allowed,
                fix=fix,
                subject=name,
            )
        )


def _merge_layers(layers_by_pattern: dict[str, Layers], pattern: str, layers: Layers) -> None:
    """Add layers to those of a pattern."""
    layers_by_pattern[pattern] = union_layers((layers_by_pattern.get(pattern, NO_LAYERS), layers))
