"""`job_relationship`: from mapped objects to the jobs whose arguments they are."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import date
from typing import Annotated, Any
from uuid import UUID, uuid4

import pydantic
import pytest
from sqlalchemy import ForeignKey, select, text
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, aliased, joinedload, mapped_column, selectinload, sessionmaker

from sa_jobqueue import Job, JobQueue
from sa_jobqueue.errors import InvalidOptionError
from sa_jobqueue.registry import LoadOptions, Ref, job_relationship
from tests.fixtures.shop import Code

pytestmark = pytest.mark.every_python


def declared(name: str) -> Callable[[], Any]:
    """Return a function that returns a handler of this module: mypy knows no type of one that is declared later."""
    return lambda: globals()[name]


class Base(DeclarativeBase): ...


class Album(Base):
    __tablename__ = "shop_album"
    id: Mapped[int] = mapped_column(primary_key=True)
    jobs: Mapped[list[Job]] = job_relationship(declared("press"), "album")
    sale_jobs: Mapped[list[Job]] = job_relationship(declared("sell"))
    gift_jobs: Mapped[list[Job]] = job_relationship(declared("give"), "album")
    return_jobs: Mapped[list[Job]] = job_relationship(declared("take_back"), "album")


class Track(Base):
    __tablename__ = "shop_track"
    album_id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    number: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    jobs: Mapped[list[Job]] = job_relationship(declared("master"))


class Label(Base):
    __tablename__ = "shop_label"
    code: Mapped[str] = mapped_column(Code, primary_key=True)
    jobs: Mapped[list[Job]] = job_relationship(declared("sign"))


class Medium(Base):
    __tablename__ = "shop_medium"
    id: Mapped[UUID] = mapped_column(primary_key=True, default=uuid4)
    kind: Mapped[str]
    jobs: Mapped[list[Job]] = job_relationship(declared("store"))
    __mapper_args__: Any = {"polymorphic_on": "kind", "polymorphic_identity": "medium"}  # noqa: RUF012


class Vinyl(Medium):
    __tablename__ = "shop_vinyl"
    id: Mapped[UUID] = mapped_column(ForeignKey("shop_medium.id"), primary_key=True)
    __mapper_args__: Any = {"polymorphic_identity": "vinyl"}  # noqa: RUF012


jobs = JobQueue()


@jobs.keyword_handler("press")
def press(session: Session, album: Annotated[Album | None, LoadOptions()] = None, copies: int = 1) -> None: ...


@jobs.handler("sell")
def sell(album: Album, session: Session) -> None: ...


@dataclass
class Gift:
    album: Ref[Album] | None


@jobs.handler("give")
def give(gift: Gift) -> None: ...


class Return(pydantic.BaseModel):
    album: Ref[Album] = pydantic.Field(alias="the album's 5%")
    albums: list[Ref[Album]] = []


@jobs.handler("take_back")
def take_back(return_: Return) -> None: ...


@jobs.handler("master")
def master(track: Track, session: Session) -> None: ...


@jobs.handler("sign")
def sign(label: Label, session: Session) -> None: ...


@jobs.handler("store")
def store(medium: Medium, session: Session) -> None: ...


@pytest.fixture
def albums(sessions: sessionmaker[Session]) -> Iterator[sessionmaker[Session]]:
    with sessions.begin() as session:
        Base.metadata.create_all(session.connection())
    yield sessions
    with sessions.begin() as session:
        Base.metadata.drop_all(session.connection())


def test_objects_are_found_by_their_jobs(albums: sessionmaker[Session]) -> None:
    with albums.begin() as session:
        pressed, other, alone = Album(id=1), Album(id=2), Album(id=3)
        session.add_all([pressed, other, alone, press.job(album=other), press.job(), sell.job(alone)])
        session.add(job := press.job(album=pressed, queue="presses"))
        session.flush()
        assert session.scalars(select(Album).where(Album.jobs.any(Job.queue == "presses"))).all() == [pressed]
        assert set(session.scalars(select(Album).where(Album.jobs.any(Job.status == "pending")))) == {pressed, other}
        assert session.scalars(select(Album).where(~Album.jobs.any())).all() == [alone]
        assert session.scalars(select(Album).where(Album.jobs.contains(job))).all() == [pressed]
        alias = aliased(Job)
        assert session.execute(select(Album.id, alias.queue).join(Album.jobs.of_type(alias)).order_by(Album.id)).all() == [
            (1, "presses"),
            (2, "default"),
        ]
        assert pressed.jobs == [job]
        assert alone.jobs == []
        assert Album().jobs == []


@pytest.mark.parametrize("load", [selectinload, joinedload], ids=lambda load: load.__name__)
def test_jobs_are_loaded_eagerly(albums: sessionmaker[Session], load: Any) -> None:
    with albums.begin() as session:
        first, second = Album(id=1), Album(id=2)
        session.add_all([first, second, *[press.job(album=first, id=UUID(int=number)) for number in (1, 2)]])
        session.add_all([sell.job(first, id=UUID(int=3)), press.job(album=second, id=UUID(int=4))])
    with albums() as session:
        chosen = select(Album).options(load(Album.jobs), load(Album.sale_jobs)).order_by(Album.id)
        loaded = session.scalars(chosen).unique().all()
        session.expunge_all()
    ids = [({job.id.int for job in album.jobs}, {job.id.int for job in album.sale_jobs}) for album in loaded]
    assert ids == [({1, 2}, {3}), ({4}, set())]


def test_keys_of_every_supported_type(albums: sessionmaker[Session]) -> None:
    with albums.begin() as session:
        tracks = [Track(album_id=1, number=2), Track(album_id=2, number=1)]
        labels, media = [Label(code="abc"), Label(code="cba")], [Vinyl(), Medium()]
        session.add_all([*tracks, *labels, *media])
        session.add_all(track_jobs := [master.job(track) for track in tracks])
        session.add_all(label_jobs := [sign.job(label) for label in labels])
        session.add_all(medium_jobs := [store.job(medium) for medium in media])
        session.flush()
        assert [track.jobs for track in tracks] == [[job] for job in track_jobs]
        assert [label.jobs for label in labels] == [[job] for job in label_jobs]
        assert [medium.jobs for medium in media] == [[job] for job in medium_jobs]
        assert session.scalars(select(Vinyl).where(Vinyl.jobs.any())).all() == media[:1]
        assert len(session.scalars(select(Track).where(Track.jobs.any())).all()) == 2
        assert len(session.scalars(select(Label).where(Label.jobs.any())).all()) == 2


def test_references_in_fields_of_classes(albums: sessionmaker[Session]) -> None:
    with albums.begin() as session:
        session.add(album := Album(id=1))
        session.add_all([given := give.job(Gift(Ref(album))), give.job(Gift(None))])
        session.add(returned := take_back.job(Return.model_validate({"the album's 5%": Ref(album)})))
        session.flush()
        assert session.scalars(select(Album.id).where(Album.gift_jobs.any(), Album.return_jobs.any())).all() == [1]
        assert (album.gift_jobs, album.return_jobs) == ([given], [returned])


def test_the_relationship_does_not_write(albums: sessionmaker[Session]) -> None:
    with albums.begin() as session:
        session.add(album := Album(id=1))
        session.add(job := press.job(album=album))
        session.flush()
        session.delete(album)
        session.flush()
        session.expire(job)
        assert job.input["album"] == {"$class": "Album", "id": 1}


def test_an_index_on_the_expression_is_used(albums: sessionmaker[Session]) -> None:
    with albums() as session:
        session.execute(text("CREATE INDEX ix_job_album ON job ((input -> 'album' ->> 'id')) WHERE type_name = 'press'"))
        session.add(Album(id=1))
        keys = [{"$class": "Album", "id": number} for number in range(300)]
        session.add_all([*[press.job({"album": key}) for key in keys], *[sell.job(key) for key in keys]])  # type: ignore[arg-type]
        session.flush()
        session.execute(text("ANALYZE job"))
        statement = str(select(Job.id).join(Album.jobs).where(Album.id == 1).compile(session.connection()))
        explained = "EXPLAIN " + statement.replace("%(id_1)s", "1")
        plan = "\n".join(session.connection().exec_driver_sql(explained).scalars())
        assert "ix_job_album" in plan
        assert "Index Cond: (((input -> 'album'::text) ->> 'id'::text) = (shop_album.id)::text)" in plan
        session.rollback()


def refused(handler: Any, field: str = "") -> str:
    """Return why a relationship is refused when its mapper is configured."""

    class Separate(DeclarativeBase): ...

    class Stock(Separate):
        __tablename__ = "shop_stock"
        id: Mapped[int] = mapped_column(primary_key=True)
        jobs: Mapped[list[Job]] = job_relationship(handler, field)

    with pytest.raises(InvalidOptionError) as raised:
        Stock.registry.configure()
    Stock.registry.dispose()
    return str(raised.value)


def test_what_the_database_cannot_compare_is_refused() -> None:
    class Plain:
        name = "plain"

        def encode(self, data: bytes, /) -> Any:
            return data.decode()

        def decode(self, stored: Any, /) -> bytes:
            return str(stored).encode()

    queue = JobQueue()

    @queue.handler("secret", codec=Plain())
    def secret(album: Album, session: Session) -> None: ...

    @queue.handler("several")
    def several(albums: list[Album], session: Session) -> None: ...

    assert "'secret' has a codec: the database cannot read the keys in its inputs" in refused(secret)
    assert "the field 'copies' of 'press' is not one mapped object, but" in refused(press, "copies")
    assert "the field 'price' of 'press' is not one mapped object, but None" in refused(press, "price")
    assert "the payload of 'press' is not one mapped object" in refused(press)
    assert "the field 'album' of 'sell' is not one mapped object" in refused(sell, "album")
    assert "the field 'albums' of 'take_back' is not one mapped object" in refused(take_back, "albums")
    assert "the payload of 'several' is not one mapped object" in refused(several)
    assert "must be a handler or a function that returns one, got 7" in refused(lambda: 7)


def test_a_key_whose_text_differs_from_its_json_is_refused() -> None:
    class DayBase(DeclarativeBase): ...

    class Day(DayBase):
        __tablename__ = "shop_day"
        day: Mapped[date] = mapped_column(primary_key=True)
        jobs: Mapped[list[Job]] = job_relationship(lambda: handler)

    def close(day: Any, session: Session) -> None: ...

    close.__annotations__["day"] = Day
    handler = JobQueue().handler("close")(close)
    with pytest.raises(InvalidOptionError, match=r"Day has a key of the type Date\(\), not an integer, text or a UUID"):
        DayBase.registry.configure()
    DayBase.registry.dispose()
