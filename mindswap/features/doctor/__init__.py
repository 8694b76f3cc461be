"""Examine this machine for problems: `mindswap doctor`."""

import os

from mindswap.config.source import load_document
from mindswap.rules.machine.facts import Diagnosis, MachineFacts, gather_job
from mindswap.rules.machine.probe import gather_machine, gather_software
from mindswap.rules.machine.resources import examine


def examine_machine(config: str | None = None) -> tuple[MachineFacts, tuple[Diagnosis, ...]]:
    """Collect facts about this machine, optionally for a configuration, and diagnose problems."""
    software = gather_software(os.environ)
    job = gather_job(load_document(config), os.environ, software.num_cards) if config else None
    facts = MachineFacts(software, gather_machine(os.environ), os.environ, job)
    return facts, examine(facts)
