"""A warning, with the stack, while something blocks a worker's event loop: then none of its other jobs runs."""

from __future__ import annotations

import asyncio
import sys
import threading
import time
import traceback
from collections.abc import Callable
from typing import Final

from sa_jobqueue.context import ClaimedJob
from sa_jobqueue.worker import logs
from sa_jobqueue.worker.background.vitals import VitalSigns

LIMIT: Final = 1.0
"""Seconds that a loop may be blocked without a warning."""
_EVERY: Final = 60.0
"""Seconds between two warnings of one job type."""
_AGAIN: Final = 0.1
"""Seconds until a second look, which a loop passes that did not run because the whole process was paused."""

JobIn = Callable[[asyncio.Task[object]], tuple[ClaimedJob | None, str]]
"""Returns the job that a task runs, if it runs one, and the place of its handler; "" if that is not known either."""


class LoopWatch:
    """Looks at the loop's vital signs from a thread, which sleeps as long as the loop may be silent.

    Not a component of the loop, which may be blocked. It reads the loop's own records: jobs cost nothing.
    """

    def __init__(self, signs: VitalSigns, job_in: JobIn, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._signs = signs
        self._job_in = job_in
        self._clock = clock
        self._stopped = threading.Event()
        self._warned: dict[str, float] = {}
        """By job type, or name of another task: when it was last named."""

    def start(self) -> None:
        """Watch the running loop, whose thread is this one."""
        loop, thread_id = asyncio.get_running_loop(), threading.get_ident()
        thread = threading.Thread(target=self._run, args=(loop, thread_id), name="sa_jobqueue loop watch", daemon=True)
        thread.start()

    def stop(self) -> None:
        """End the thread."""
        self._stopped.set()

    def _run(self, loop: asyncio.AbstractEventLoop, thread_id: int) -> None:
        reported: float | None = None
        while not self._stopped.is_set():
            last_active, silent = self._signs.loop_last_active, self._signs.loop_silent
            if silent < LIMIT or last_active == reported:
                self._stopped.wait(max(_AGAIN, LIMIT - silent))
            elif not self._stopped.wait(_AGAIN) and self._signs.loop_last_active == last_active:
                reported = last_active
                self._report(loop, thread_id)

    def _report(self, loop: asyncio.AbstractEventLoop, thread_id: int) -> None:
        task = asyncio.current_task(loop)
        frame = sys._current_frames().get(thread_id)
        if task is None or frame is None:  # it waits for the processor, or has just gone on
            return
        job, handler = self._job_in(task)
        name, now = task.get_name() if job is None else job.type_name, self._clock()
        if now - self._warned.get(name, -_EVERY) < _EVERY:
            return
        self._warned[name] = now
        logs.warn_of_blocked_loop(self._signs.loop_silent, name, job, handler, "".join(traceback.format_stack(frame)))
