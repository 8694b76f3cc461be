"""Command line of `mindswap verify`."""

import argparse

from tqdm import tqdm

from mindswap.command_line.options import MAX_NUMBER, add_json, add_no_cache, add_rank, answer, number_from
from mindswap.features.verify import verify

EPILOG = """\
examples:
  mindswap verify configs/llama2_7b/case3_op_swap.yaml
  mindswap verify --json llama2_7b.yaml | jq '.layers[].swapped_bytes'
  mindswap verify llama2_7b.yaml --rank 0
  mindswap verify llama2_7b.yaml --brief
  mindswap verify llama2_7b.yaml --log output/msrun
  mindswap verify llama2_7b.yaml --log output/log         # a single process: output/log/rank_0/info.log
  mindswap verify pretrain_2x.yaml --cards 8              # of MindFormers 2.x, in PyNative mode

Exit code 0: the compiled graph follows CONFIG exactly; 1 if not. The network is compiled
without weights, by MindSpore's own frontend with lazy_inline on, for one rank that has the whole model, or for
the layers and sizes of --rank. With swap off, MindFormers' own recompute is compared with recompute_config.
With --brief it is compiled once, under the policy, and without swap only if something is not as asked.
With --log, 1 also if a worker did not log the policy, or its log shows that it had no effect. What was compiled once
is kept in $MINDSWAP_CACHE, or ~/.cache/mindswap; where others can write to the latter, or you cannot, in
mindswap-user-UID in the temporary folder. A $MINDSWAP_CACHE that others can write to is not used.
A configuration of MindFormers 2.x (PyNative) has no graph: its own trainer swaps and recomputes in a dry run (mindswap
dryrun), and each entry is compared with the copies and recomputed cells there; 1 if one has no effect in a layer.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Define the arguments and options of the command."""
    parser.add_argument("config", metavar="CONFIG", help="YAML of MindFormers")
    add_rank(parser)
    add_no_cache(parser)
    add_json(parser)
    parser.add_argument(
        "--cards", metavar="N", type=number_from(1, MAX_NUMBER), help="of MindFormers 2.x: cards of the training"
    )
    parser.add_argument("--brief", action="store_true", help="leave out what is kept without swap; half the time")
    parser.add_argument(
        "--log",
        metavar="DIR",
        help="also compare the logs of a run: msrun's worker_*.log or node_*/worker_*.log; without msrun output/log",
    )


def run(args: argparse.Namespace) -> int:
    """Verify one configuration."""
    with tqdm(desc="reading logs", unit=" logs", leave=False, disable=None if args.log else True) as bar:

        def show(number: int, total: int) -> None:
            bar.total = total
            bar.update(number - bar.n)
            if number == total:
                bar.close()

        verification = verify(args.config, args.rank, args.log, not args.no_cache, show, args.brief, args.cards)
    return answer(args, verification.data, verification, verification.matches_policy)
