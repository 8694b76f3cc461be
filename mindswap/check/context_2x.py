"""What a rule for 2.x files looks at, and how it is made."""

import functools
from dataclasses import dataclass

from mindswap.config import rules
from mindswap.config.nodes import Document
from mindswap.policy.mindformers_2x.effect import SettingsEffect
from mindswap.policy.mindformers_2x.settings import Settings2x

rule = functools.partial(rules.rule, prefix="pynative-")


@dataclass(frozen=True, eq=False)
class Context2x:
    """What a rule looks at."""

    document: Document  # the configuration, as located nodes
    settings: Settings2x  # what it says, statement by statement
    effect: SettingsEffect  # what upstream makes of that
    mindformers: str = ""  # the version that is installed here; "" if none is, or if nobody looked

    @property
    def num_layers(self) -> int | None:
        """Layers of the model with those for multi-token prediction; None if not known."""
        return self.settings.num_layers
