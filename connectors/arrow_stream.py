"""Rows of any number as Arrow batches in the driver, one partition after the other."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, cast

import pyarrow as pa

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def stream_arrow(frame: DataFrame) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a frame, partition by partition, in the order within each.

    The driver holds two partitions at most: the next one is computed while one is read. pyspark's own
    iterator returns a Python object for each row.
    """
    from pyspark.serializers import NoOpSerializer
    from pyspark.sql.pandas.types import to_arrow_schema
    from pyspark.util import _local_iterator_from_socket

    session = cast("Any", frame.sparkSession)
    batches = cast("Any", frame)._jdf.toArrowBatchRdd()  # noqa: SLF001
    served = session._jvm.PythonRDD.toLocalIteratorAndServe(batches, True)  # noqa: SLF001
    schema = to_arrow_schema(frame.schema)
    for message in _local_iterator_from_socket(served, NoOpSerializer()):
        yield pa.ipc.read_record_batch(pa.py_buffer(message), schema)
