"""Running jobs.

A worker is one event loop with a few duties, each a component that the supervisor restarts when it fails:

- the **claimer** takes due jobs for the free slots: one statement, committed before any handler runs, so that an
  attempt is counted even if the process dies in it;
- the **executor** runs each handler, async ones as tasks, sync ones in threads;
- the **completer** writes the ends of attempts, many in one fenced statement; a handler with a session completes in that
  session's own commit instead;
- the **heartbeat**, a thread, says that the worker lives; every lease of the worker hangs on that;
- the **rescuer** takes back what silent workers held;
- the **listener** hears of new and of lost jobs, which saves waiting and nothing else: notifications are hints, so the
  **verifier** reads whether an attempt is lost before it is stopped.

What the database decides: who owns an attempt (`id`, `attempt`, `leased_by`, status), and every instant. What a crash
does: the heartbeat stops, and after the time to live any other worker's rescuer puts the jobs back, after a backoff, or
among the dead letters if that was their last attempt. What an outage does: duties fail and restart; ends of attempts
stay queued; when the worker cannot beat for too long it stops its attempts before others may start them.
"""

from sa_jobqueue.worker.options import WorkerOptions
from sa_jobqueue.worker.worker import Worker

__all__ = ["Worker", "WorkerOptions"]
