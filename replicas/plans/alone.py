"""One query without lmerge, as a process: ``python -m replicas.plans.alone BUILD ...``.

What users have otherwise, for comparison: the same plan with the same fast settings and a
checkpoint, started again after a kill. It prints a line of JSON for each micro-batch that gave
results, when they are there.
"""

from __future__ import annotations

import argparse
import json
import sys
import time

from pyspark.sql import DataFrame

from replicas.loading import load_build, query_of
from replicas.session import session


def main(arguments: list[str]) -> None:
    """Runs until it is ended."""
    parser = argparse.ArgumentParser()
    parser.add_argument("build")
    parser.add_argument("--checkpoint", required=True)
    parser.add_argument("--conf", action="append", default=[])
    said = parser.parse_args(arguments)
    spark = session("alone", more=dict(each.split("=", 1) for each in said.conf))
    df, options = query_of(load_build(said.build), said.build, spark)

    def tell(rows: DataFrame, epoch: int) -> None:
        found = rows.toArrow().num_rows
        if found:
            sys.stdout.write(json.dumps({"epoch": epoch, "rows": found, "at": time.time()}) + "\n")
            sys.stdout.flush()

    started = df.writeStream.outputMode(options["mode"]).foreachBatch(tell)
    started.option("checkpointLocation", said.checkpoint).start().awaitTermination()


if __name__ == "__main__":
    main(sys.argv[1:])
