"""What `mindswap inspect` says of several configurations, compiled in one process, as JSON.

python rank_reports.py < JOBS > RESULTS, both a list; each job is {"config": PATH, "rank": RANK or null}.
MindFormers builds the legacy and the newer models only in different processes.
"""

import json
import sys

from mindswap.check.check import check_document
from mindswap.config.rank import place_rank
from mindswap.document.source import load_document
from mindswap.report.memory import memory_to_json
from mindswap.session.inspect import inspect_config


def main():
    json.dump([run_job(**job) for job in json.load(sys.stdin)], sys.stdout)


def run_job(config, rank):
    document = load_document(config)
    checked = check_document(document)
    placement = None if rank is None else place_rank(document, rank, checked.num_layers)
    return memory_to_json(inspect_config(config, checked.policy, placement))


if __name__ == "__main__":
    main()
