"""Division of a MindFormers configuration between mindswap and MindFormers."""

from typing import Any

from mindformers.modules.transformer import TransformerSwapConfig
from mindformers.tools.register import MindFormerConfig
from mindformers.tools.register.template import ConfigTemplate, RecomputeConfig, SwapConfig

from mindswap.policy.model import Policy

SECTIONS = ("swap_config", "recompute_config")


def keep_swap_sections() -> None:
    """Keep `swap_config` and `recompute_config` as written when a YAML is loaded, in this process."""
    original = ConfigTemplate.apply_template
    if getattr(original, "keeps_swap_sections", False):
        return

    def apply_template(cls, config):
        if not isinstance(config, dict):
            return original.__func__(cls, config)  # no configuration: MindFormers reports it
        sections = {key: config.pop(key) for key in SECTIONS if key in config}
        try:
            return original.__func__(cls, config)
        finally:
            config.update(sections)

    apply_template.keeps_swap_sections = True  # type: ignore[attr-defined]
    ConfigTemplate.apply_template = classmethod(apply_template)


def has_swap_sections(config) -> bool:
    """Return whether it is the configuration of a training, to which MindFormers' template adds both sections."""
    return isinstance(config, dict) and any(key in config for key in SECTIONS)


def replace_swap_sections(config, policy: Policy) -> None:
    """Set the sections that MindFormers uses; `config` is changed in place.

    With swap enabled, mindswap alone controls swap and recompute, and the memory optimization that swap requires is
    set; otherwise MindFormers receives the user's sections unchanged.
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
    """Return the section, or the defaults if MindFormers would reject it although swap is disabled."""
    try:
        completed = SwapConfig.apply(section)
        TransformerSwapConfig(**completed)
    except (KeyError, TypeError, ValueError, AttributeError):
        return SwapConfig.apply({"swap": False})
    return completed


def install_stand_ins(config) -> None:
    """Install the CPU replacements if `mindswap: {cpu_stand_ins: True}` requests them."""
    from mindswap.adapters.graph.cpu_stand_ins import replace_cpu_stand_ins

    wants_stand_ins = bool((config.get("mindswap") or {}).get("cpu_stand_ins"))
    replace_cpu_stand_ins(wants_stand_ins and config.context.device_target == "CPU")
