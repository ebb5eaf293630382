"""The statements of the types page about other libraries, checked against these libraries."""

from __future__ import annotations

from typing import Any

import pytest
import type_pages
from pyspark.sql import SparkSession


@pytest.mark.parametrize(("name", "kind"), type_pages.ICEBERG.items(), ids=list(type_pages.ICEBERG))
def test_iceberg_to_spark(spark: SparkSession, name: str, kind: str) -> None:
    iceberg: Any = spark._jvm.org.apache.iceberg  # type: ignore[union-attr]
    assert iceberg.spark.SparkSchemaUtil.convert(iceberg.types.Types.fromPrimitiveString(name)).sql() == kind
