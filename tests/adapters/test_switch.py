"""`MINDSWAP=1 msrun ... SCRIPT`, a real training; what needs no MindSpore is in tests/features/run/test_switch.py."""

import os
import socket
import sys
from pathlib import Path

import pytest

from tests.adapters.training import ATTENTION_SWAP, PLAIN, SCRIPT, write_config
from tests.features.run.installed import Environment


@pytest.mark.mindspore
def test_two_workers_of_msrun_train_with_the_plugin(tmp_path, data):
    """The command of a user, unchanged: msrun, the script, its options."""
    environment = Environment(tmp_path)
    edits = {
        "swap_config": ATTENTION_SWAP,
        "train_dataset.data_loader.num_samples": 4,
        "callbacks": [{"type": "MFLossMonitor", "per_print_times": 1}],
    }
    config = write_config(tmp_path, {**PLAIN, **edits})
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    msrun = Path(sys.executable).with_name("msrun")
    path = os.pathsep.join([str(environment.python.parent), os.environ["PATH"]])
    options = ("--config", str(config), "--run_mode", "train", "--train_dataset_dir", str(data), "--output_dir", "out")
    cluster = ("--worker_num=2", "--local_worker_num=2", f"--master_port={port}", "--log_dir=logs", "--join=True")
    run = environment.run(str(msrun), *cluster, str(SCRIPT), *options, PATH=path)
    logs = [(tmp_path / "logs" / f"worker_{rank}.log").read_text() for rank in (0, 1)]
    assert run.returncode == 0, logs[0][-3000:]
    for log in logs:
        assert "mindswap: on (MINDSWAP)" in log
        assert "Set op_swap at layer 0: .attention, value=20" in log
        assert log.count("loss:[") == 2
