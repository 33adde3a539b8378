"""Progress lines: when they are printed, and what they estimate."""

from __future__ import annotations

from sa_jobqueue.display.progress import ProgressLines


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_a_step_prints_immediately_and_then_every_interval_with_an_estimate() -> None:
    clock, printed = Clock(), list[str]()
    lines = ProgressLines("load", write=printed.append, clock=clock)
    lines.tick()
    lines.begin("reading", total=2_000)
    clock.now += 9
    lines.tick()
    assert printed == ["load: reading"]
    lines.update(500)
    clock.now += 1
    lines.tick()
    lines.tick()
    assert printed[1:] == ["load: reading, 500 of 2,000 (25%), 10 s, about 30 s left"]
    lines.begin("writing", measure=lambda: (3, 3))
    clock.now += 10
    lines.tick()
    assert printed[2:] == ["load: writing", "load: writing, 3 of 3 (100%), 10 s"]
    lines.begin("a\nb")
    clock.now += 10
    lines.tick()
    assert printed[4:] == [r"load: a\nb", r"load: a\nb, 10 s"]


def test_a_step_that_is_only_updated_prints_after_the_interval_and_its_end_only_then() -> None:
    clock, printed = Clock(), list[str]()
    with ProgressLines("prune", write=printed.append, clock=clock) as lines:
        lines.update(200, step="jobs deleted")
    assert printed == []
    with ProgressLines("prune", write=printed.append, clock=clock) as lines:
        lines.update(200, step="jobs deleted")
        clock.now += 10
        lines.update(3_000, step="jobs deleted")
        lines.tick()
    assert printed == ["prune: jobs deleted, 3,000, 10 s", "prune: done after 10 s"]


def test_a_failing_measurement_does_not_stop_progress_lines() -> None:
    clock, printed, shares = Clock(), list[str](), iter([(1, 4)])
    lines = ProgressLines("load", write=printed.append, clock=clock)
    lines.begin("staging", measure=lambda: next(shares))
    for _ in range(2):
        clock.now += 10
        lines.tick()
    assert printed[1:] == [
        "load: staging, 1 of 4 (25%), 10 s, about 30 s left",
        "load: staging, 1 of 4 (25%), 20 s, about 1 min left",
    ]
