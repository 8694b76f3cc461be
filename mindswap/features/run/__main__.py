"""`python -m mindswap.features.run EXECUTE_ORDER [WORKER_NUM] ...`: the launcher without the shell script."""

import sys

from mindswap.features.run.launcher import main

sys.exit(main())
