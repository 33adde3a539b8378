"""The application: a queue, two tables of results, and three handlers. Nothing here knows of Spark."""

from dataclasses import dataclass
from datetime import date
from math import asin, cos, radians, sin, sqrt
from typing import Any

from sqlalchemy import Index, func, insert, select
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from sa_jobqueue import Blockers, Discard, JobMixin, JobQueue


class Base(DeclarativeBase):
    pass


class Job(JobMixin, Base, queue_prefix="flights_", queue_pipeline=True):
    pass


class Measured(Base):
    """One flight, measured. Its key is not the flight: one that was measured twice would show."""

    __tablename__ = "measured"
    __table_args__ = (Index("ix_measured_day", "origin", "day"),)  # which `close_day` reads by

    id: Mapped[int] = mapped_column(primary_key=True)
    flight: Mapped[str]
    origin: Mapped[str]
    day: Mapped[date]
    cancelled: Mapped[bool]
    late: Mapped[bool]
    minutes_late: Mapped[float | None]
    miles_an_hour: Mapped[float | None]
    great_circle_miles: Mapped[float | None]
    bad_weather: Mapped[bool | None]
    age_of_plane: Mapped[int | None]


class Day(Base):
    """One day at one airport."""

    __tablename__ = "day"

    id: Mapped[int] = mapped_column(primary_key=True)
    origin: Mapped[str]
    day: Mapped[date]
    flights: Mapped[int]
    """That were measured."""
    diverted: Mapped[int]
    """Whose jobs died: they came down somewhere else."""
    cancelled: Mapped[int]
    late: Mapped[int]
    minutes_late: Mapped[float]


jobs = JobQueue(Job)


@dataclass
class Flight:
    """A flight with the data of the other tables for its hour, its plane and its airports. Units are those of the data."""

    flight: str
    origin: str
    day: date
    departed: bool
    arr_delay: float | None
    air_time: float | None
    distance: int
    wind_speed: float | None
    precip: float | None
    visib: float | None
    plane_year: int | None
    from_lat: float | None
    from_lon: float | None
    to_lat: float | None
    to_lon: float | None


@dataclass
class AirportDay:
    origin: str
    day: date


@jobs.batch_handler("measure_flight", queue="flights", max_size=200)
def measure_flights(flights: list[Flight], session: Session) -> list[str | Exception]:
    """Measure flights, up to 200 in one call. Their rows and their completions are one commit."""
    arrived = [flight for flight in flights if not is_diverted(flight)]
    if arrived:
        rows = [measured(flight) for flight in arrived]
        # Without render_nulls, each set of missing values would be a separate statement: 45 a batch instead of one.
        session.execute(insert(Measured), rows, execution_options={"render_nulls": True})
    diverted = Discard("diverted: it left, and did not arrive where it should")
    return [diverted if is_diverted(flight) else flight.flight for flight in flights]


def is_diverted(flight: Flight) -> bool:
    return flight.departed and flight.arr_delay is None


def measured(flight: Flight) -> dict[str, Any]:
    """Return the row of one flight."""
    return {
        "flight": flight.flight,
        "origin": flight.origin,
        "day": flight.day,
        "cancelled": not flight.departed,
        "late": flight.arr_delay is not None and flight.arr_delay > 15,
        "minutes_late": flight.arr_delay,
        "miles_an_hour": flight.distance / flight.air_time * 60 if flight.air_time else None,
        "great_circle_miles": great_circle(flight),
        "bad_weather": bad_weather(flight),
        "age_of_plane": flight.day.year - flight.plane_year if flight.plane_year else None,
    }


@jobs.handler("close_day", queue="days")
def close_day(airport_day: AirportDay, session: Session, flights: Blockers[list[str | None]]) -> int:
    """Sum up a day at an airport, after the last of its flights: measured, or given up."""
    sums = select(
        func.count(),
        func.count().filter(Measured.cancelled),
        func.count().filter(Measured.late),
        func.coalesce(func.sum(Measured.minutes_late), 0.0),
    ).where(Measured.origin == airport_day.origin, Measured.day == airport_day.day)
    measured, cancelled, late, minutes = session.execute(sums).one()
    session.add(
        Day(
            origin=airport_day.origin,
            day=airport_day.day,
            flights=measured,
            diverted=len(flights.failed),
            cancelled=cancelled,
            late=late,
            minutes_late=minutes,
        )
    )
    return measured


@jobs.handler("close_year", queue="days")
def close_year(days: Blockers[list[int]]) -> int:
    """Return how many flights were measured, when every day is closed."""
    return sum(days.outputs)


def great_circle(flight: Flight) -> float | None:
    """Return the statute miles between the airports, by the haversine formula; None where one is unknown."""
    if flight.from_lat is None or flight.from_lon is None or flight.to_lat is None or flight.to_lon is None:
        return None
    a, b, width = radians(flight.from_lat), radians(flight.to_lat), radians(flight.to_lon - flight.from_lon)
    return 2 * 3958.8 * asin(sqrt(sin((b - a) / 2) ** 2 + cos(a) * cos(b) * sin(width / 2) ** 2))


def bad_weather(flight: Flight) -> bool | None:
    """Return whether it left into wind, rain or fog; None without weather data."""
    if flight.wind_speed is None and flight.precip is None and flight.visib is None:
        return None
    return (flight.wind_speed or 0) > 25 or (flight.precip or 0) > 0 or (10 if flight.visib is None else flight.visib) < 3
