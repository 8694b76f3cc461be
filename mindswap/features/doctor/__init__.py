"""`mindswap doctor`: facts about this machine, and findings in them."""

import os

from mindswap.config.source import load_document
from mindswap.rules.machine.facts import Diagnosis, MachineFacts, gather_job
from mindswap.rules.machine.probe import gather_machine, gather_software
from mindswap.rules.machine.resources import examine


def examine_machine(config: str | None = None) -> tuple[MachineFacts, tuple[Diagnosis, ...]]:
    """Facts about this machine, for a configuration where one is named, and what is not as it should be."""
    software = gather_software(os.environ)
    job = gather_job(load_document(config), os.environ, software.num_cards) if config else None
    facts = MachineFacts(software, gather_machine(os.environ), os.environ, job)
    return facts, examine(facts)
