"""Run jobs.

A worker is one event loop with a few components, each restarted by the supervisor when it fails:

- the **claimer** takes due jobs for the free slots with one statement, committed before any handler runs, so that an
  attempt is counted even if the process dies in it;
- the **executor** runs each handler, async ones as tasks, sync ones in threads;
- the **completer** records the results of attempts, many in one fenced statement; a handler with a session completes in
  that session's own commit instead;
- the **heartbeat**, a thread, shows that the worker is alive; every lease of the worker depends on it;
- the **rescuer** recovers the jobs of dead workers;
- the **listener** receives notifications of new and of lost jobs. They only save waiting: the database is asked
  whether an attempt is lost before it is stopped.

The database decides who owns an attempt (`id`, `attempt`, `leased_by`, status), and all times. After a crash the heartbeats
stop; after `heartbeat_timeout` any other worker's rescuer reschedules the jobs with a backoff, or makes them dead letters if
that was their last attempt. During an outage components fail and restart, and results of attempts stay queued; a worker
without a successful heartbeat for too long stops its attempts before other workers may start them.
"""

from sa_jobqueue.worker.group import WorkerGroup
from sa_jobqueue.worker.options import WorkerOptions
from sa_jobqueue.worker.worker import Worker

__all__ = ["Worker", "WorkerGroup", "WorkerOptions"]
