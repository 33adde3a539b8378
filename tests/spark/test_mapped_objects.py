"""References to mapped objects that a DataFrame has: the worker loads the objects."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from sqlalchemy import Engine, select
from sqlalchemy.orm import Session, sessionmaker

from sa_jobqueue import Job
from sa_jobqueue.pipeline.spark import enqueue
from sa_jobqueue.testing import drain
from tests.fixtures.shop import Order
from tests.spark.shop_app import jobs, remind, ship

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.timeout(600)  # the first test to ask for Spark starts it


def test_handlers_receive_the_objects_that_rows_refer_to(
    plainly: SparkSession, shop: sessionmaker[Session], engine: Engine, database_url: str
) -> None:
    with shop.begin() as session:
        session.add_all([Order(id=7), Order(id=8), Order(id=9)])
    orders = plainly.createDataFrame([("Order", 7)], "`$class` STRING, id BIGINT")
    assert enqueue(orders, ship, url=database_url).enqueued == 1
    fields = "order STRUCT<`$class`: STRING, id: BIGINT>, note STRING"
    reminders = plainly.createDataFrame([(("Order", 8), "now"), (("Customer", 9), "now")], fields)
    result = enqueue(reminders, remind, url=database_url, mode="PERMISSIVE")
    assert (result.enqueued, result.rejected) == (1, 1)  # of another class
    with shop() as session:
        assert session.scalars(select(Job.input).order_by(Job.type_name.desc())).all() == [
            {"$class": "Order", "id": 7},
            {"order": {"$class": "Order", "id": 8}, "note": "now"},
        ]
    assert drain(jobs, engine).completed == 2
    with shop() as session:
        statuses = session.scalars(select(Order.status).order_by(Order.id)).all()
    assert statuses == ["shipped, True", "reminded, now", "new"]
