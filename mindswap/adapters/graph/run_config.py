"""The configuration of MindFormers, divided between mindswap and MindFormers."""

from typing import Any

from mindformers.modules.transformer import TransformerSwapConfig
from mindformers.tools.register import MindFormerConfig
from mindformers.tools.register.template import ConfigTemplate, RecomputeConfig, SwapConfig

from mindswap.policy.model import Policy

SECTIONS = ("swap_config", "recompute_config")


def keep_swap_sections() -> None:
    """From now on, loading a YAML leaves `swap_config` and `recompute_config` as the user wrote them."""
    original = ConfigTemplate.apply_template
    if getattr(original, "keeps_swap_sections", False):
        return

    def apply_template(cls, config):
        if not isinstance(config, dict):
            return original.__func__(cls, config)  # MindFormers' own answer to what is no configuration
        kept = {key: config.pop(key) for key in SECTIONS if key in config}
        try:
            return original.__func__(cls, config)
        finally:
            config.update(kept)

    apply_template.keeps_swap_sections = True  # type: ignore[attr-defined]
    ConfigTemplate.apply_template = classmethod(apply_template)


def has_swap_sections(config) -> bool:
    """True for a configuration of a training: the template of MindFormers gives it both sections."""
    return isinstance(config, dict) and any(key in config for key in SECTIONS)


def replace_swap_sections(config, policy: Policy) -> None:
    """Give MindFormers the sections it is to act on; `config` is changed in place.

    With swap enabled mindswap alone owns swap and recompute, and the memory optimisation that swap needs is set;
    otherwise MindFormers gets what the user wrote.
    """
    if policy.is_swap_enabled:
        sections = {
            "swap_config": SwapConfig.apply({"swap": False}),
            "recompute_config": RecomputeConfig.apply({"recompute": False}),
        }
        config["context"]["memory_optimize_level"] = "O0"
    else:
        sections = {
            "swap_config": _readable_swap_section(config.get("swap_config")),
            "recompute_config": RecomputeConfig.apply(config.get("recompute_config")),
        }
    for key, value in sections.items():
        config[key] = MindFormerConfig(**value)


def _readable_swap_section(section) -> dict[str, Any]:
    """The section, or the defaults if MindFormers would stop at it although swap is off."""
    try:
        completed = SwapConfig.apply(section)
        TransformerSwapConfig(**completed)
    except (KeyError, TypeError, ValueError, AttributeError):
        return SwapConfig.apply({"swap": False})
    return completed


def install_stand_ins(config) -> None:
    """Stand-ins for parts without a CPU kernel, where `mindswap: {cpu_stand_ins: True}` asks for them."""
    from mindswap.adapters.graph.cpu_stand_ins import replace_cpu_stand_ins

    wants_stand_ins = bool((config.get("mindswap") or {}).get("cpu_stand_ins"))
    replace_cpu_stand_ins(wants_stand_ins and config.context.device_target == "CPU")
