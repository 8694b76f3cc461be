#!/usr/bin/env bash
# Train with MindFormers and the mindswap plugin on several workers.
#
#   bash scripts/msrun_launch.sh "run_mindformer.py --config case1.yaml --run_mode train --use_parallel True" \
#       8 8 <ip> 8118 0 output/msrun False 300
#
# Same arguments as MindFormers' msrun_launcher.sh; all forms: bash scripts/msrun_launch.sh --help
# This script only finds Python (PYTHON names another one); mindswap/runtime/launch does the work.

here=$(dirname "$(realpath "${BASH_SOURCE[0]}")")
if [ -f "$here/../mindswap/features/run/__main__.py" ]; then # in a checkout: use it, installed or not
    root=$(realpath "$here/..")
    export PYTHONPATH="$root${PYTHONPATH:+:$PYTHONPATH}"
fi

python=${PYTHON:-$(command -v python || command -v python3)}
if [ -z "$python" ]; then
    echo "mindswap: error: no python in PATH; name one: PYTHON=/path/to/python bash $0 ..." >&2
    exit 1
fi
# As -P, which Python 3.10 lacks: a folder named mindswap here is not ours.
run="import runpy, sys; sys.path[:] = filter(None, sys.path); runpy.run_module('mindswap.features.run', run_name='__main__', alter_sys=True)"
exec "$python" -c "$run" "$@"
