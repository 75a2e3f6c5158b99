"""All tables that scores look things up in, as one flat array: what compiled code is handed.

The head says where each table begins and how long its sides are: `flat[STEPS]` is the place of the first step,
`flat[STEPS + 1]` their number, `flat[USABLE + 2]` the second side of `usable`. One array, because references to
thirteen are counted up and down at every call in compiled code, which costs more than the call does.
"""

import numpy as np

from scheduler.placement.demand import Demand
from scheduler.placement.pool import Ints
from scheduler.placement.score import Weights

NAMES = (
    "steps", "level", "copy_inverse", "copy_offset", "copy_need", "rest", "scarcity",
    "weights", "copy_value", "quotients", "groups", "usable", "many",
)  # fmt: skip
(
    STEPS, LEVEL, COPY_INVERSE, COPY_OFFSET, COPY_NEED, RESTS, SCARCITIES,
    WEIGHTS, COPY_VALUE, QUOTIENTS, GROUPS, USABLE, MANY,
) = range(0, 4 * len(NAMES), 4)  # fmt: skip
CPU_PER_GPU = 4 * len(NAMES)
HEAD = CPU_PER_GPU + 1


def flatten(demand: Demand, weights: Weights) -> Ints:
    """Return the tables in one array. Weights: row 0 for requests with GPUs, row 1 for those without."""
    both = np.stack((weights.gpu, weights.cpu_only))
    tables: list[Ints] = [both if name == "weights" else getattr(demand, name) for name in NAMES]
    head, at = np.zeros(HEAD, np.int64), HEAD
    for number, table in enumerate(tables):
        head[4 * number : 4 * number + 1 + table.ndim] = at, *table.shape
        at += table.size
    head[CPU_PER_GPU] = demand.cpu_per_gpu
    return np.concatenate((head, *(table.ravel() for table in tables)))
