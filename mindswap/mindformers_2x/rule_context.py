"""What a rule for 2.x files looks at, and how it is made."""

import functools
from dataclasses import dataclass

from mindswap.document import rules
from mindswap.document.nodes import Document
from mindswap.mindformers_2x.effect import SettingsEffect
from mindswap.mindformers_2x.settings import Settings2x

rule = functools.partial(rules.rule, prefix="pynative-")


@dataclass(frozen=True, eq=False)
class Context2x:
    """What a rule looks at.

    Attributes:
        document: the configuration, as located nodes.
        settings: what it says, statement by statement.
        effect: what upstream makes of that.
    """

    document: Document
    settings: Settings2x
    effect: SettingsEffect

    @property
    def num_layers(self) -> int | None:
        """Layers of the model with those for multi-token prediction; None if not known."""
        return self.settings.num_layers
