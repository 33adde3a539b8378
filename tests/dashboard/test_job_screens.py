"""Jobs in a list and on their page: the start of the input for those who may see it, durations, the bar of a job's way."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Any

from sqlalchemy import Engine, func, insert, update

from sa_jobqueue import Job, JobStatus
from sa_jobqueue.dashboard import Access, dashboard
from sa_jobqueue.dashboard.charts import Line, Mark, Span, _nice, amount, bar, chart, clock
from sa_jobqueue.dashboard.rendering import brief, environment
from sa_jobqueue.observe.minutes import Figures
from tests.dashboard.conftest import Client
from tests.dashboard.pages import words
from tests.fixtures.jobs import Jobs


def test_a_list_shows_the_start_of_an_input_only_to_those_who_may_see_it(client: Client, engine: Engine, jobs: Jobs) -> None:
    jobs.add(type_name="pay", input={"order_id": 7278, "lines": [1], "gift": None, "note": "late"})
    jobs.add(type_name="pay", input={"text": "x" * 100_000})
    page = words(client.page("/queue/jobs"))
    assert "pay order_id 7278, note late default" in page
    assert "xxx" not in page
    access = Access(user="eve", payload_types=["mail*"])
    hidden = Client(dashboard(engine, authorize=lambda request: access)).page("/queue/jobs")
    assert "7278" not in hidden
    assert "note" not in words(hidden)


def test_an_input_is_described_on_one_line() -> None:
    assert brief({"order_id": 7, "to": "ann", "is_gift": True, "more": 1}) == "order_id 7, to ann, is_gift true"
    assert brief([1, 2]) == ""
    assert brief("text") == "text"
    assert brief(None) == brief({}) == ""
    assert len(brief({"text": "x" * 500})) == 60


def test_a_list_shows_how_long_the_last_attempt_took(client: Client, engine: Engine, jobs: Jobs) -> None:
    completed, running, _ = jobs.add(JobStatus.COMPLETED), jobs.add(JobStatus.RUNNING), jobs.add()
    with engine.begin() as connection:
        began = update(Job).values(started_at=func.now() - timedelta(minutes=1))
        connection.execute(began.where(Job.id == running))
        connection.execute(began.values(completed_at=func.now() - timedelta(seconds=48)).where(Job.id == completed))
    took = re.findall(r'<td class="number">([^<]*)</td></tr>', client.page("/queue/jobs"))
    assert took in (["-", "1 min", "12 s"], ["-", "1:00", "12 s"])


def test_a_bar_shows_waits_runs_and_retries_of_a_job_with_its_steps(client: Client, engine: Engine, jobs: Jobs) -> None:
    at = datetime.now(UTC)
    job_id = jobs.add(created_at=at - timedelta(minutes=3), scheduled_at=at + timedelta(minutes=5))
    error = {"type": "ValueError", "message": "no such order"}
    attempt = {"attempt": 1, "outcome": "failed", "error": error, "ended_at": at - timedelta(minutes=1)}
    step = {"name": "draft", "kind": "step", "attempt": 1, "started_at": at - timedelta(minutes=2), "output": 1}
    with engine.begin() as connection:
        connection.execute(insert(Job.Attempt).values(job_id=job_id, started_at=at - timedelta(minutes=2), **attempt))
        connection.execute(insert(Job.Step).values(job_id=job_id, completed_at=at - timedelta(seconds=90), **step))
    jobs.add_many(9, type_name="other")
    page = client.page(f"/queue/job?id={job_id}")
    (label,) = re.findall('<svg [^>]*aria-label="(wait [^"]*)"', page)
    instants = [re.split(" (?=[0-9])", part)[0] + part[part.index(" until") :] for part in label.split(", ")]
    assert instants == [
        "wait until attempt 1 started",
        "bad run until attempt 1 failed",
        "retry until due",
    ]
    assert re.search('<rect class="step"[^>]*><title>step draft: (30 s|0:30)</title>', page)
    assert "Earlier of this type" not in page
    later = client.page(f"/queue/job?id={jobs.add()}")
    assert f'title="{job_id}"' in later[later.index("Earlier of this type") :]


def test_every_part_of_a_bar_can_be_seen_and_steps_lie_below_the_part_that_they_ran_in() -> None:
    at = datetime(2026, 1, 1, tzinfo=UTC)
    spans = [Span("wait", "started", at, at + timedelta(hours=9))]
    spans += [Span("run", "completed", at + timedelta(hours=9), at + timedelta(hours=9, seconds=2))]
    inside = [Span("step", "step draft", at + timedelta(hours=9, seconds=1), at + timedelta(hours=9, seconds=2))]
    _, run, step = bar(spans, inside).boxes
    assert run.width >= 9
    assert step.kind == "step"
    assert run.x < step.x
    assert step.x + step.width <= run.x + run.width + 0.2


def test_axes_have_short_numbers_and_times_as_on_a_clock() -> None:
    assert list(map(amount, (0, 0.5, 20, 1500, 80_000, 2_500_000))) == ["0", "0.5", "20", "1,500", "80k", "2.5M"]
    assert list(map(clock, (0.25, 15, 100, 240, 9000, 259_200))) == ["250 ms", "15 s", "1:40", "4:00", "2:30 h", "3 d"]
    assert [_nice(value, is_time=True) for value in (13, 70, 500, 4000)] == [20, 120, 1200, 7200]


def test_marks_have_labels_where_there_is_room_and_points_lead_to_their_jobs() -> None:
    at, minute = datetime(2026, 1, 1, tzinfo=UTC), timedelta(minutes=1)
    points = [Figures(at + number * minute, 60, 1, 1, 0, 0, 0, 1, 1, [], []) for number in range(30)]
    marks = [Mark(at + 20 * minute, "00:20 mail paused by <bob>"), Mark(at + 21 * minute, "00:21 mail resumed by bob")]
    line = Line("due", lambda point: 79_000)
    due = chart("due", "Due", points, [line], since=at, step=minute, count=30, marks=marks, jobs="/jobs?a=1")
    ui: Any = environment().globals["ui"]
    drawn = ui.draw(due)
    assert ">mail paused by &lt;bob&gt;</text>" in drawn
    assert "mail resumed by bob</text>" not in drawn  # no room; its title has it
    assert "00:21 mail resumed by bob</title>" in drawn
    assert ">80k</text>" in drawn
    assert 'data-jobs="/jobs?a=1" data-step="60"' in drawn
    assert f'data-at="{at.timestamp():.0f}"' in drawn
