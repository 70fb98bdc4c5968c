"""Orders, their payments and their parcels: a three-way temporal join in two join orders.

Each row lives for ``LIFE_S`` from its time ``at``. A result is an order, a payment after it and a
parcel after that, of the same customer, that live at the same time: it begins with the parcel and
ends with the order. The input has a folder for each of the three.

- :func:`orders_first` joins orders and payments, and the parcels to that;
- :func:`parcels_first` joins payments and parcels, and the orders to that.

They keep different intermediate results in their state, and give results in another order. A result
can start behind the watermark: by how much follows from the joins' conditions, and the stream's
stable point stays that far behind.
"""

from __future__ import annotations

import random
from functools import partial
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import expr

from replicas.plans.inputs import BEGIN, SECOND, TIME, Plan, Row, complete_at, stream, table, write

LIFE_S: Final = 10
CUSTOMERS: Final = 5
FOLDERS: Final = ("orders", "payments", "parcels")
SCHEMA: Final = pa.schema(
    [pa.field("at", TIME), pa.field("customer", pa.int64()), pa.field("number", pa.int64())]
)
_LIFE: Final = f"INTERVAL {LIFE_S} SECONDS"
_PAID: Final = (
    "order_customer = payment_customer"
    f" AND paid_at >= ordered_at AND paid_at < ordered_at + {_LIFE}"
)
_SENT: Final = (
    f"payment_customer = parcel_customer AND sent_at >= paid_at AND sent_at < paid_at + {_LIFE}"
)
_ALIVE: Final = (
    f"order_customer = parcel_customer AND sent_at >= ordered_at AND sent_at < ordered_at + {_LIFE}"
)
_OPTIONS: Final[dict[str, Any]] = {
    "mode": "append",
    "vs": "sent_at",
    "ve": f"ordered_at + {_LIFE}",
    "payload": ["customer", "order_number", "payment_number", "parcel_number"],
    "keyed": True,  # every row of the input has a number of its own
    "options": {"restriction": "R3"},
}


def orders_first(spark: SparkSession) -> Plan:
    """(orders ⋈ payments) ⋈ parcels."""
    orders, payments, parcels = _streams(spark)
    paid = _plain(orders.join(payments, expr(_PAID)), "ordered_at")
    return _result(paid.join(parcels, expr(_SENT)).where(_ALIVE)), dict(_OPTIONS)


def parcels_first(spark: SparkSession) -> Plan:
    """orders ⋈ (payments ⋈ parcels)."""
    orders, payments, parcels = _streams(spark)
    sent = _plain(payments.join(parcels, expr(_SENT)), "paid_at")
    return _result(orders.join(sent, expr(_ALIVE)).where(_PAID)), dict(_OPTIONS)


def _plain(joined: DataFrame, column: str) -> DataFrame:
    """``column`` as a time like any other: what goes into a join may have one event time only."""
    return joined.withColumn(column, expr(f"timestamp_micros(unix_micros({column}))"))


def _streams(spark: SparkSession) -> tuple[DataFrame, DataFrame, DataFrame]:
    # Whatever a row is part of ends within its own life.
    orders, payments, parcels = (
        stream(spark, folder, look_back=f"{LIFE_S} seconds") for folder in FOLDERS
    )
    return _named(orders, payments, parcels)


def _named(
    orders: DataFrame, payments: DataFrame, parcels: DataFrame
) -> tuple[DataFrame, DataFrame, DataFrame]:
    return (
        orders.selectExpr(
            "at AS ordered_at", "customer AS order_customer", "number AS order_number"
        ),
        payments.selectExpr(
            "at AS paid_at", "customer AS payment_customer", "number AS payment_number"
        ),
        parcels.selectExpr(
            "at AS sent_at", "customer AS parcel_customer", "number AS parcel_number"
        ),
    )


def _result(joined: DataFrame) -> DataFrame:
    return joined.selectExpr(
        "order_customer AS customer", "order_number", "payment_number", "parcel_number",
        "sent_at", "ordered_at",
    )  # fmt: skip


def truth(spark: SparkSession, directory: str) -> DataFrame:
    """All triples at once, as a product that is filtered."""
    orders, payments, parcels = _named(*(table(spark, directory, each) for each in FOLDERS))
    triples = orders.crossJoin(payments).crossJoin(parcels)
    return triples.where(
        "order_customer = payment_customer AND payment_customer = parcel_customer"
        " AND ordered_at <= paid_at AND paid_at <= sent_at"
        f" AND sent_at < ordered_at + {_LIFE}"
    ).selectExpr(
        "order_customer AS customer", "order_number", "payment_number", "parcel_number",
        "unix_micros(sent_at) AS vs", f"unix_micros(ordered_at) + {LIFE_S * SECOND} AS ve",
    )  # fmt: skip


def _closing(customer: int, at: int, number: int) -> Row:
    return {"at": at, "customer": customer, "number": -1 - number}


def generate(directory: str | Path, rows: int, seed: int, disorder_s: float) -> int:
    """Write the input, a third of the rows to each folder; see :mod:`replicas.plans.inputs`."""
    pick = random.Random(seed)  # noqa: S311 (data, and no secret)
    each = max(1, rows // len(FOLDERS))
    sides = [
        [
            {
                "at": BEGIN + n * SECOND + pick.randrange(SECOND),
                "customer": pick.randrange(CUSTOMERS),
                "number": n,
            }
            for n in range(each)
        ]
        for _ in FOLDERS
    ]
    complete = complete_at([row for side in sides for row in side])
    for place, (folder, side) in enumerate(zip(FOLDERS, sides, strict=True)):
        write(
            Path(directory) / folder,
            SCHEMA,
            side,
            partial(_closing, -1 - place),  # no two of them meet
            seed=seed + place,
            disorder_s=disorder_s,
            complete=complete,
        )
    return complete
