"""Handlers in child processes: declared `isolation="process"`, for work that is CPU-bound or may crash.

There are two sides. The **worker** claims, sends heartbeats and writes the results of attempts, for these jobs as for all
others; it holds a `Children`. A **child** is a fresh interpreter (never a fork of the worker, which has threads and
connections) that imports the application by name; it runs one attempt at a time and holds no lease, no session and no
connection of ours. They communicate over one socket with lines of JSON, so nothing is unpickled: the worker sends the job's
row, the child sends log records, extensions and one answer.

The child decodes the payload, calls the handler, encodes its output, and asks the type's retry policy, because only there is
the error still an exception. The worker builds the continuation from the columns that were set. It trusts the child,
which runs the application's own code, with the application's own rights. Bytes that are no message end the child.

After `max_jobs_per_child` attempts a child is closed, and the next attempt starts another one. When an attempt must stop
(timed out, cancelled, lost, released), its child has half of `cancel_timeout` to end it, then gets SIGTERM, and at the end
of `cancel_timeout` SIGKILL, with everything it has started. A child that exceeds its type's memory limit is killed. If a
child crashes, its exit status is that attempt's failure, known immediately and not when a lease expires. When the worker
dies, the kernel kills its children (Linux), and on every system they see the socket close.
"""

from sa_jobqueue.worker.run.isolation.children import Children, app_of

__all__ = ["Children", "app_of"]
