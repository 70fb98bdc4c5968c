"""A query for deployments in tests, and what it is to give: each row is an event of a second."""

from __future__ import annotations

import json
import os
from collections import Counter
from pathlib import Path
from typing import Any

INPUT = "LMERGE_TEST_DEPLOYED"
SECOND = 1_000_000
BEGIN = 1_700_000_000
STEP = 60  # seconds of a file
ROWS = 20


def build(spark: Any) -> tuple[Any, dict[str, Any]]:
    from pyspark.sql import functions as F  # noqa: N812 (everybody's name for it)

    reader = spark.readStream.option("maxFilesPerTrigger", 4)
    found = reader.schema("at DOUBLE, v BIGINT").json(os.environ[INPUT])
    at = F.timestamp_micros((F.col("at") * SECOND).cast("bigint"))
    selected = found.select(at.alias("at"), "v").withWatermark("at", "1 second")
    return selected, {"vs": "at", "ve": "at + INTERVAL 1 SECOND", "payload": ["v"]}


def ends_at_once(spark: Any) -> Any:
    raise RuntimeError("this query is of no use")


def write_file(directory: Path, number: int) -> None:
    """The next rows, and with them the stable point of those before."""
    draft = directory / f".part-{number}"
    draft.write_text(
        "".join(
            json.dumps({"at": BEGIN + number * STEP + 2 * row, "v": number * ROWS + row}) + "\n"
            for row in range(ROWS)
        )
    )
    os.utime(draft, (BEGIN + number, BEGIN + number))  # Spark reads in the order of times
    draft.rename(directory / f"part-{number}.json")


def truth(files: int) -> Counter[tuple[int, int, int]]:
    """Every event of so many files: (v, vs, ve)."""
    return Counter(
        (number * ROWS + row, start, start + SECOND)
        for number in range(files)
        for row in range(ROWS)
        for start in [(BEGIN + number * STEP + 2 * row) * SECOND]
    )
