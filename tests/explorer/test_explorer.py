"""The explorer finds planted defects, runs every order once, and repeats a printed one."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from math import comb

import pytest
from psycopg.errors import DeadlockDetected
from sqlalchemy import Connection, Engine, text
from sqlalchemy.orm import Session

from tests.explorer import Explorer, Operation, Outcomes, Report, Scenario, ScheduleFailed, Steps

Counters = list[int]
"""The context: ids of rows of their own, each with the value 0."""

ADD_ONE = text("UPDATE counter SET value = value + 1 WHERE id = :id")


@pytest.fixture(autouse=True)
def _counters(engine: Engine) -> None:
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE counter (id integer GENERATED ALWAYS AS IDENTITY PRIMARY KEY, value integer)"))
        connection.execute(text("CREATE TABLE key (id integer PRIMARY KEY)"))


def counters(session: Session, *, count: int = 2) -> Counters:
    return list(session.scalars(text(f"INSERT INTO counter (value) VALUES {', '.join(['(0)'] * count)} RETURNING id")))


def values(connection: Connection, ids: Counters) -> list[int]:
    chosen = text("SELECT value FROM counter WHERE id = ANY(:ids) ORDER BY id")
    return list(connection.execute(chosen, {"ids": ids}).scalars())


def anything(connection: Connection, ids: Counters, outcomes: Outcomes) -> None:
    """Check nothing."""


def both_counted(connection: Connection, ids: Counters, outcomes: Outcomes) -> None:
    assert values(connection, ids)[0] == 2, "an update was lost"


def read_then_write(session: Session, ids: Counters, *, lock: str = "") -> Steps:
    value = session.scalar(text(f"SELECT value FROM counter WHERE id = :id {lock}"), {"id": ids[0]})
    yield "read"
    session.execute(text("UPDATE counter SET value = :value WHERE id = :id"), {"id": ids[0], "value": value + 1})
    return value


def add_to(session: Session, ids: Counters, *, order: tuple[int, ...]) -> Steps:
    for place in order[:-1]:
        session.execute(ADD_ONE, {"id": ids[place]})
        yield f"add to {place}"
    session.execute(ADD_ONE, {"id": ids[order[-1]]})


def scenario(
    *operations: Operation[Counters],
    name: str = "counters",
    check: Callable[[Connection, Counters, Outcomes], str | None] = anything,
    allow_deadlock: bool = False,
) -> Scenario[Counters]:
    return Scenario(name=name, setup=counters, operations=operations, check=check, allow_deadlock=allow_deadlock)


def two(run: Callable[[Session, Counters], Steps]) -> list[Operation[Counters]]:
    return [Operation("a", run), Operation("b", run)]


def test_a_lost_update_is_found_and_replayed(explorer: Explorer) -> None:
    race = scenario(*two(read_then_write), name="lost update", check=both_counted)
    with pytest.raises(ScheduleFailed, match=r"(?s)'lost update'.*an update was lost.*explorer\.replay") as raised:
        explorer.explore(race)
    line = str(raised.value.schedule)
    for _ in range(3):
        with pytest.raises(ScheduleFailed) as again:
            explorer.replay(race, line)
        assert again.value.schedule.story == raised.value.schedule.story
    serial = explorer.replay(race, "a a a b b b")
    assert [outcome.value for outcome in serial.outcomes.values()] == [0, 1]


def test_with_a_lock_no_update_is_lost_and_waiting_operations_are_counted(explorer: Explorer) -> None:
    locked = partial(read_then_write, lock="FOR UPDATE")
    report = explorer.explore(scenario(*two(locked), check=both_counted))
    # The first to read ends first; the other has waited since before the write, since before the commit, or not.
    assert (report.schedules, report.blocked, report.is_complete) == (6, 4, True)
    assert report.outcomes == {"a=committed b=committed": 6}


@pytest.mark.slow
@pytest.mark.parametrize(("first", "second"), [(1, 1), (1, 3), (2, 2), (3, 3)])
def test_independent_operations_run_once_in_every_order(explorer: Explorer, first: int, second: int) -> None:
    met: list[str] = []

    def note(session: Session, ids: Counters, *, name: str, steps: int) -> Steps:
        for _ in range(steps - 1):
            session.execute(ADD_ONE, {"id": ids["ab".index(name)]})
            met[-1] += name
            yield
        session.execute(ADD_ONE, {"id": ids["ab".index(name)]})
        met[-1] += name

    def begin(session: Session) -> Counters:
        met.append("")
        return counters(session)

    operations = [
        Operation("a", partial(note, name="a", steps=first), autocommit=True),
        Operation("b", partial(note, name="b", steps=second), autocommit=True),
    ]
    report = explorer.explore(Scenario(name="independent", setup=begin, operations=operations, check=anything))
    assert report.schedules == len(set(met)) == len(met) == comb(first + second, first)
    assert (report.blocked, report.is_complete) == (0, True)


def test_the_commit_is_a_step_but_an_empty_last_step_is_not(explorer: Explorer) -> None:
    def named_at_the_end(session: Session, ids: Counters) -> Steps:
        yield from add_to(session, ids, order=(0, 0))
        yield "add to 0 again"

    plain = explorer.explore(
        scenario(Operation("a", partial(add_to, order=(0, 0))), Operation("b", partial(add_to, order=(1, 1))))
    )
    assert plain.schedules == comb(6, 3)
    alone = explorer.replay(scenario(Operation("a", named_at_the_end)), "")
    assert [step.label for step in alone.steps] == ["add to 0", "add to 0 again", "commit"]


def test_three_operations_run_once_in_every_order(explorer: Explorer) -> None:
    operation = partial(add_to, order=(0,))
    operations = [Operation(name, operation, autocommit=True) for name in "abc"]
    assert explorer.explore(scenario(*operations)).schedules == 6


def test_a_plain_function_is_a_single_step(explorer: Explorer) -> None:
    def add(session: Session, ids: Counters) -> int:
        session.execute(ADD_ONE, {"id": ids[0]})
        return 7

    schedule = explorer.replay(scenario(Operation("a", add), Operation("b", add, autocommit=True)), "b a a")
    assert [step.label for step in schedule.steps] == ["last step", "last step", "commit"]
    assert [outcome.value for outcome in schedule.outcomes.values()] == [7, 7]


def test_a_deadlock_fails_a_scenario_unless_it_allows_deadlocks(explorer: Explorer) -> None:
    crossed = [Operation("a", partial(add_to, order=(0, 1))), Operation("b", partial(add_to, order=(1, 0)))]
    with pytest.raises(ScheduleFailed, match="must not end in DeadlockDetected") as raised:
        explorer.explore(scenario(*crossed))
    assert raised.value.schedule.blocked == 2
    report = explorer.explore(scenario(*crossed, allow_deadlock=True))
    assert sum(count for kinds, count in report.outcomes.items() if "DeadlockDetected" in kinds) >= 2
    operations = [Operation(operation.name, operation.run, may_raise=(DeadlockDetected,)) for operation in crossed]
    assert explorer.explore(scenario(*operations)).schedules == report.schedules


def test_a_deadlock_is_resolved_before_a_third_operation_continues(explorer: Explorer) -> None:
    operations = [
        Operation("a", partial(add_to, order=(0, 1))),
        Operation("b", partial(add_to, order=(1, 0))),
        Operation("c", lambda session, ids: add_to(session, [-1], order=(0,))),
    ]
    schedule = explorer.replay(scenario(*operations, allow_deadlock=True), "a b a b c")
    assert sum(outcome.is_deadlock for outcome in schedule.outcomes.values()) == 1
    assert [step.ended_after for step in schedule.steps if step.waited_for].count(4) >= 1


@pytest.mark.slow
@pytest.mark.parametrize(("names", "adds"), [("ab", 1), ("ab", 3), ("abc", 1), ("abc", 2)])
def test_operations_waiting_for_one_row_proceed_in_every_possible_order(explorer: Explorer, names: str, adds: int) -> None:
    def all_counted(connection: Connection, ids: Counters, outcomes: Outcomes) -> None:
        assert values(connection, ids)[0] == len(names) * adds

    operations = [Operation(name, partial(add_to, order=(0,) * adds)) for name in names]
    report = explorer.explore(scenario(*operations, check=all_counted))
    assert report.outcomes == {" ".join(f"{name}=committed" for name in names): report.schedules}
    assert (report.schedules, report.is_complete) == (orders_of_one_lock(dict.fromkeys(names, adds + 1), ()), True)


def orders_of_one_lock(steps_left: dict[str, int], queue: tuple[str, ...]) -> int:
    """Count the orders of operations that take one lock in their first step and keep it to their last; no database.

    `steps_left`: the steps each still has. `queue`: who has the lock, and then who waits for it, first come first served.
    """
    if not any(steps_left.values()):
        return 1
    count = 0
    for name in (name for name, steps in steps_left.items() if steps and name not in queue[1:]):
        after, waiting = dict(steps_left), queue if name in queue else (*queue, name)
        if waiting[0] == name:
            after[name] -= 1
        if not after[name]:
            waiting = waiting[1:]
            if waiting:
                after[waiting[0]] -= 1  # the step in which it waited ends
        count += orders_of_one_lock(after, waiting)
    return count


def test_an_error_is_accepted_only_where_it_is_expected(explorer: Explorer) -> None:
    def refuse(session: Session, ids: Counters) -> Steps:
        session.execute(ADD_ONE, {"id": ids[0]})
        yield
        raise LookupError("none")

    def nothing_kept(connection: Connection, ids: Counters, outcomes: Outcomes) -> str:
        assert values(connection, ids) == [0, 1]
        assert isinstance(outcomes["a"].error, LookupError)
        return "refused"

    second = Operation("b", partial(add_to, order=(1,)))
    with pytest.raises(ScheduleFailed, match="a must not end in LookupError"):
        explorer.explore(scenario(Operation("a", refuse), second))
    report = explorer.explore(scenario(Operation("a", refuse, may_raise=(LookupError,)), second, check=nothing_kept))
    assert report.endings == {"refused": comb(4, 2)}
    assert report.outcomes == {"a=LookupError b=committed": comb(4, 2)}


def test_an_operation_may_end_its_transaction_itself(explorer: Explorer) -> None:
    def undo(session: Session, ids: Counters) -> Steps:
        yield from add_to(session, ids, order=(0, 1))
        session.rollback()

    schedule = explorer.replay(scenario(Operation("a", undo)), "a a")
    assert len(schedule.steps) == 2
    assert schedule.outcomes["a"].kind == "rolled-back"


def test_operations_unblocked_at_the_same_time_can_be_explored(explorer: Explorer) -> None:
    def insert(session: Session, ids: Counters) -> Steps:
        session.execute(text("INSERT INTO key VALUES (:id) ON CONFLICT DO NOTHING"), {"id": ids[0]})
        yield "insert"
        session.rollback()

    # Those who wait for the same transaction are woken at once, and either may be first.
    report = explorer.explore(scenario(*(Operation(name, insert) for name in "abc")))
    assert report.blocked > 0
    assert report.schedules >= 30


def test_a_limit_and_a_sample_bound_the_number_of_schedules(explorer: Explorer) -> None:
    many = scenario(Operation("a", partial(add_to, order=(0, 0, 0))), Operation("b", partial(add_to, order=(1, 1, 1))))
    assert _bounded(explorer.explore(many, limit=5)) == (5, False)
    assert _bounded(explorer.explore(many, sample=(10, 1))) == (10, False)
    few = scenario(Operation("a", partial(add_to, order=(0,))), Operation("b", partial(add_to, order=(1,))))
    assert _bounded(explorer.explore(few, sample=(100, 1))) == (comb(4, 2), True)


def _bounded(report: Report) -> tuple[int, bool]:
    return report.schedules, report.is_complete


def test_a_step_that_never_ends_fails_and_the_explorer_stays_usable(engine: Engine) -> None:
    def sleep(session: Session, ids: Counters) -> None:
        session.execute(text("SELECT pg_sleep(60)"))

    with Explorer(engine, patience=0.2) as explorer:
        with pytest.raises(ScheduleFailed, match=r"no step ended in 0\.2 s"):
            explorer.explore(scenario(Operation("a", partial(add_to, order=(0, 1))), Operation("b", sleep)))
        assert explorer.explore(scenario(*two(partial(add_to, order=(0,))))).is_complete


def test_an_impossible_schedule_is_refused(explorer: Explorer) -> None:
    operations = two(partial(add_to, order=(0, 0)))
    with pytest.raises(ValueError, match=r"step 3 of the schedule cannot be 'b': only \['a'\] can go on"):
        explorer.replay(scenario(*operations), "a b b")


def test_an_invalid_scenario_is_refused() -> None:
    with pytest.raises(ValueError, match="one word"):
        Operation("two words", read_then_write)
    with pytest.raises(ValueError, match="names of their own"):
        scenario(Operation("a", read_then_write), Operation("a", read_then_write))
