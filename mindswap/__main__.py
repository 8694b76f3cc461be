"""`python -m mindswap` is the command line."""

import sys

from mindswap.cli import main

sys.exit(main())
