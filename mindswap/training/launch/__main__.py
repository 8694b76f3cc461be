"""`python -m mindswap.training.launch EXECUTE_ORDER [WORKER_NUM] ...`: the launcher without the shell script."""

import sys

from mindswap.commands.launcher import main

sys.exit(main())
