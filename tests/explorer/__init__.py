"""Runs operations that meet in the database in every order their locks allow, and checks what came of each order.

A race in a test with two connections shows one order, the one its author thought of. This takes the operations apart
into steps and runs them all: depth first over the question "whose step is next", each schedule from its start on fresh
rows, as no state of a database can be set back. That is stateless search, as in VeriSoft (Godefroid, Model Checking for
Programming Languages using VeriSoft, POPL 1997) and CHESS (Musuvathi et al., Finding and Reproducing Heisenbugs in
Concurrent Programs, OSDI 2008); here PostgreSQL's locks decide which steps are enabled.

**An operation** is a generator function of a session, on a connection of its own at READ COMMITTED, and of the context
that the scenario's setup returned. Each `yield` ends a step and may name it; a step is what happens at once as far as
the others can tell: a statement, or one call of a public operation. What follows the last `yield` is a step, too, and
the end commits, as one more step; a generator that commits or rolls back itself at its end has none. A plain function
is one step, and its commit. With `autocommit=True` each step commits itself at its end, as a worker's statements do:
write such an operation without a `yield` at its end, or it has one empty step more. An operation that raises is rolled
back in the same step; name the errors it may raise in `may_raise`. All it does must go through its session: what others
do for it cannot be seen waiting. It must not sleep, wait for another operation outside the database, or set
`lock_timeout`. For a worker's statements, `tests.explorer.workers.SessionHands` are `Hands` on an operation's session.

**A scenario** has a setup, the operations, and a check. The setup gets a session whose transaction is committed for it,
makes fresh rows and returns those that the operations need. Rows of earlier schedules stay, so give operations that
look for work (a claim, a rescue) a queue of their own in each schedule, or let the setup delete older rows. The check
gets a connection, the context and the outcomes by name, asserts what must be true of those rows, and may return a word
for how it ended: the report counts these, so that a test can prove that its case was met.

```python
from tests.explorer import Explorer, Operation, Outcomes, Scenario, Steps

def cancel(session: Session, job_id: UUID) -> Steps:
    cancel_jobs(session, [job_id])
    yield "cancel"                          # a name for the step that ends here
    session.execute(...)                    # a second step; then the commit, a third
    return "the value of the outcome"

def setup(session: Session) -> UUID:        # the context is any value, or an object of yours
    job = Job(type_name="test", input=None)
    session.add(job)
    session.flush()
    return job.id

def check(connection: Connection, job_id: UUID, outcomes: Outcomes) -> str | None:
    status = connection.execute(select(Job.status).where(Job.id == job_id)).scalar_one()
    assert status in ENDED
    return status.value

def test_cancel_races_with_complete(explorer: Explorer) -> None:          # the fixture of `conftest.py`
    scenario = Scenario(
        name="cancel x complete",
        setup=setup,
        operations=[
            Operation("cancel", cancel, may_raise=(NotFoundError,)),
            Operation("complete", complete, autocommit=True, settings=GUARDS),
        ],
        check=check,
    )
    report = explorer.explore(scenario)     # limit=1000: the first ones; sample=(1000, 7): random ones, by a seed
    assert report.is_complete
    assert set(report.endings) == {"completed", "cancelled"}
```

**Chains and blockers** have a setup, operations and a check of their own in `tests.explorer.chains`: a `Scene` of named
jobs, and `prove`, which asserts after each schedule what must always hold, then passes on every end and runs out whatever
can run.

**Waiting** is seen, not slept on: a step has ended, or PostgreSQL shows that its backend waits for another operation's
(`pg_blocking_pids`). A step that waits is passed over until the operation that holds it up has released it, and ends then,
before the next choice. Where operations wait for each other, PostgreSQL ends one of them; that fails the schedule unless
the scenario has `allow_deadlock`. Which one it ends is a matter of time, as is which of two waiters that are woken at once
goes first: every variant met is explored, and orders that could not be met again are counted as `unreached`.

**A failure** is a `ScheduleFailed`, an AssertionError with the scenario, the violated rule, the story of the
schedule, and a line such as `cancel complete* cancel`. `explorer.replay(scenario, line)` runs that schedule alone; a
line may also be written by hand, and be the beginning only. An asterisk, for a step that had to wait, is for the reader.

**Numbers**: n and m steps that no lock orders have C(n + m, n) schedules; three operations of three steps have 1,680,
of four 34,650: then use `sample`, or steps that matter. A schedule costs about 3 ms without a wait and 10 ms with some
on a machine of two cores, besides its setup and check; one with a deadlock 60 ms. A test has a minute, unless marked.
"""

from tests.explorer.explorer import Explorer
from tests.explorer.scenario import Operation, Outcome, Outcomes, Report, Scenario, Schedule, ScheduleFailed, Step, Steps

__all__ = [
    "Explorer",
    "Operation",
    "Outcome",
    "Outcomes",
    "Report",
    "Scenario",
    "Schedule",
    "ScheduleFailed",
    "Step",
    "Steps",
]
