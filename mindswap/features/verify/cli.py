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

Exit code 0: the compiled graph follows CONFIG exactly; 1 if not. The network is compiled without weights, by
MindSpore's own frontend with lazy_inline on: for one rank with the full model, or for the layers and sizes of --rank.
With swap off, MindFormers' own recompute is compared with recompute_config.
With --brief the network is compiled only with the policy, and also without it only if the graph does not follow it.
With --log, the exit code is also 1 if a worker did not log the policy, or if its log shows that it had no effect.
Compiled graphs are cached in $MINDSWAP_CACHE, or ~/.cache/mindswap. If that folder is not writable, or other users can
write to it, the cache is mindswap-user-UID in the temporary folder. A $MINDSWAP_CACHE of that kind is not used.
A configuration of MindFormers 2.x (PyNative) has no graph: its own trainer swaps and recomputes in a dry run (mindswap
dryrun), and each entry is compared with the copies and recomputed cells in it; 1 if one has no effect in a layer.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Define the arguments and options of the command."""
    parser.add_argument("config", metavar="CONFIG", help="YAML of MindFormers")
    add_rank(parser)
    add_no_cache(parser)
    add_json(parser)
    parser.add_argument(
        "--cards",
        metavar="N",
        type=number_from(1, MAX_NUMBER),
        help="with MindFormers 2.x: number of cards of the training",
    )
    parser.add_argument(
        "--brief", action="store_true", help="do not compile without swap for comparison; takes half the time"
    )
    parser.add_argument(
        "--log",
        metavar="DIR",
        help="also check the logs of a run: msrun's worker_*.log or node_*/worker_*.log; output/log without msrun",
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
