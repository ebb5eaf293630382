"""Runs a task per split: in threads of the driver, or as Spark tasks where the session has executors.

The work of a task is in Arrow, the client libraries and the servers, which release Python's lock. Threads
need no Spark session, and none of them outlives the driver.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from headrace.pipeline.protocol.log_context import with_log_context

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from headrace.pipeline.protocol.epochs import Json

SplitFunction = Callable[["Json"], "Json"]


def run_split_tasks(
    task: SplitFunction, splits: Sequence[Json], spark: SparkSession, threads: int, *, in_turn: bool
) -> list[Json]:
    """Return the result of `task` for each split. `task` is immutable and can be pickled.

    With `threads` 0 Spark runs the tasks. `in_turn`: one after the other, up to the first failure.
    """
    if not threads:
        rdd = spark.sparkContext.parallelize(list(splits), 1 if in_turn else len(splits))
        return (rdd.mapPartitions(_in_turn(task)) if in_turn else rdd.map(task)).collect()
    if in_turn:
        return list(_in_turn(task)(splits))
    with ThreadPoolExecutor(min(threads, len(splits)), thread_name_prefix="split") as pool:
        running = [pool.submit(with_log_context(task), split) for split in splits]
        return [future.result() for future in running]


def count_task_threads(master: str) -> int:
    """Return the number of threads for tasks in the driver: the cores of a local master, 0 for a cluster."""
    if not master.startswith("local"):
        return 0
    if master == "local":
        return 1
    cores = re.match(r"local\[(\d+)", master)
    return int(cores[1]) if cores else os.cpu_count() or 2


def _in_turn(task: SplitFunction) -> Callable[[Iterable[Json]], Iterator[Json]]:
    """Return a function that runs splits one after the other, up to the first failure.

    The order of splits counts if several have rows of one key, or keys that the target treats as equal.
    """

    def run(splits: Iterable[Json]) -> Iterator[Json]:
        for split in splits:
            result = task(split)
            yield result
            if result["failure"]:
                return

    return run
