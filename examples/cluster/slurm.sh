#!/usr/bin/env bash
# An adaptive run of mindswap on nodes of Slurm: Ray on all of them, the command on the first.
#     sbatch examples/cluster/slurm.sh llama2_7b.yaml
# The last SPARE of the nodes stand by. The virtual environment with mindswap[ray], the YAML, the data and this folder
# are at the same path on every node.
#SBATCH --job-name=mindswap
#SBATCH --nodes=3
#SBATCH --ntasks-per-node=1
#SBATCH --exclusive
#SBATCH --no-kill
#SBATCH --output=%x-%j.log
set -euo pipefail

config=${1:?usage: sbatch slurm.sh CONFIG.yaml}
SPARE=${SPARE:-1}
CARDS=${CARDS:-8} # of a node
MEMORY=${MEMORY:-54GiB}
PORT=${PORT:-6379}
num_nodes=$((SLURM_JOB_NUM_NODES - SPARE))

# Ray 2.52 and later lets in only who has the token: the folder must be yours alone.
export RAY_AUTH_MODE=token RAY_AUTH_TOKEN_PATH="${HOME}/.ray/token-${SLURM_JOB_ID}"
(umask 077 && mkdir -p "${HOME}/.ray" && head -c 32 /dev/urandom | base64 > "$RAY_AUTH_TOKEN_PATH")
trap 'rm -f "$RAY_AUTH_TOKEN_PATH"; kill $(jobs -p) 2> /dev/null || true' EXIT

mapfile -t names < <(scontrol show hostnames "$SLURM_JOB_NODELIST")
on_first=(srun --nodes=1 --ntasks=1 --overlap --nodelist="${names[0]}")
# The address in the cluster's own network; the first, where there are several.
read -r address _ < <("${on_first[@]}" hostname --ip-address)
[[ $address != 127.* ]] || { echo "${names[0]} calls itself $address: no other node reaches that" >&2; exit 1; }

"${on_first[@]}" ray start --head --node-ip-address="$address" --port="$PORT" --include-dashboard=false --block &
until "${on_first[@]}" ray health-check --address="$address:$PORT" > /dev/null 2>&1; do
    kill -0 $! 2> /dev/null || { echo "Ray did not start on ${names[0]}" >&2; exit 1; }
    sleep 2
done
if ((SLURM_JOB_NUM_NODES > 1)); then
    # Without --no-kill the loss of one node would end Ray on all of them.
    srun --nodes=$((SLURM_JOB_NUM_NODES - 1)) --ntasks=$((SLURM_JOB_NUM_NODES - 1)) --overlap --no-kill \
        --exclude="${names[0]}" ray start --address="$address:$PORT" --block &
fi
"${on_first[@]}" python -c '
import sys, time, ray
ray.init(sys.argv[1], log_to_driver=False)
for _ in range(150):  # after five minutes mindswap says which nodes are there
    if sum(node["Alive"] for node in ray.nodes()) >= int(sys.argv[2]):
        break
    time.sleep(2)
' "$address:$PORT" "$SLURM_JOB_NUM_NODES"

"${on_first[@]}" mindswap run --adaptive-memory-optimization --memory "$MEMORY" \
    --ray "$address:$PORT" --nodes "$num_nodes" --spare "$SPARE" -- \
    msrun --worker_num=$((CARDS * num_nodes)) --local_worker_num="$CARDS" --log_dir="output/run" \
    python -m mindswap run --config "$config" --run_mode train --use_parallel True
