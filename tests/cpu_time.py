"""How the work of two sizes of an input compares, on machines that do other things as well."""

import gc
import time
from collections.abc import Callable


def cpu_ratio(large: Callable[[], object], small: Callable[[], object], num_tries: int = 3) -> float:
    """CPU time of `large` over that of `small`; of each the least of `num_tries`, as noise only ever adds."""
    return _least_cpu_s(large, num_tries) / _least_cpu_s(small, num_tries)


def _least_cpu_s(work: Callable[[], object], num_tries: int) -> float:
    def once() -> float:
        gc.collect()
        gc.disable()  # a collection walks over all objects of the process, those of other tests, too
        try:
            start_s = time.process_time()
            work()
            return time.process_time() - start_s
        finally:
            gc.enable()

    return min(once() for _ in range(num_tries))
