"""Decides how a worker waits for jobs: announced as idle, so that producers notify it, or by polling while much arrives.

A commit that notifies takes a lock of the whole server, so producers notify only if a worker has announced that it is idle.
A worker that is notified often withdraws its announcement and polls, as a network driver does with its interrupts. It
announces itself again when little arrives; since a producer may have looked just before that, it polls a few times more.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from sa_jobqueue.operations.wakeups import LOOK_AGAIN_AFTER
from sa_jobqueue.worker.background.listener import Listener

_INTERVAL: Final = 0.004
"""Average seconds between two arrivals above which a worker stays announced; a notified job is two arrivals."""
_BURST: Final = 0.04
"""Seconds' worth of arrivals that may follow each other more closely."""
_MOST: Final = 0.1
"""Maximum seconds for which a worker without arrivals goes on polling before it announces itself."""
_FIRST_POLL: Final = 0.005
"""Seconds until the first poll, doubled each time."""
_POLLS: Final = 1.6 * LOOK_AGAIN_AFTER.total_seconds()
"""Seconds after an announcement in which the last of these polls is planned: its delay is as long again."""


class Idleness:
    """State of one worker's announcement.

    `listener`: None if the worker does not listen; then it is never announced. `clock`: in seconds.
    """

    def __init__(self, listener: Listener | None, clock: Callable[[], float]) -> None:
        self._listener, self._clock = listener, clock
        self._earned = float("-inf")
        """Theoretical arrival time of the generic cell rate algorithm (ITU-T I.371)."""
        self._polls_until = self._poll_at = float("-inf")
        self._delay = _FIRST_POLL

    @property
    def is_busy(self) -> bool:
        """Whether so much arrives that polling is cheaper than notifications."""
        return self._listener is not None and self._earned - self._clock() > _BURST

    def arrived(self, count: int = 1) -> None:
        """Count notifications, or jobs that were started."""
        now = self._clock()
        self._earned = min(max(self._earned, now) + count * _INTERVAL, now + _MOST)
        self._poll_soon()
        if self._listener is not None and self.is_busy:
            self._listener.withdraw()

    async def announce(self) -> bool:
        """Announce the worker unless it is or much arrives; return whether to look for jobs once more before sleeping."""
        if self._listener is None or self.is_busy or not await self._listener.announce():
            return False
        self._polls_until = self._clock() + _POLLS
        self._poll_soon()
        return True

    def _poll_soon(self) -> None:
        self._delay, self._poll_at = _FIRST_POLL, float("-inf")

    def poll_in(self) -> float | None:
        """Return in how many seconds to poll for jobs of which no notification may have been sent; None: for none.

        A sleep that ends before the poll is due does not put it off: a job that this worker reschedules ends one, too.
        """
        if self._listener is None:
            return None
        is_unannounced = self._listener.listening.is_set() and not self._listener.is_announced
        now = self._clock()
        if not (self.is_busy or is_unannounced or now < self._polls_until):
            return None
        if now >= self._poll_at:
            self._poll_at, self._delay = now + self._delay, 2 * self._delay
        return self._poll_at - now
