"""Handlers in child processes: declared `isolation="process"`, for work that keeps a processor busy or that may crash.

Three roles. The **worker** claims, beats and writes the ends of attempts, for these jobs as for all others; it holds a
`Children`. A **child** is a fresh interpreter (never a fork of the worker, which has threads and connections) that has
imported the application by name; it runs one attempt at a time and holds no lease, no session and no connection of ours.
Between the two runs one socket with frames of JSON, so nothing is unpickled: the worker sends the job's row, the child sends
log records, extensions and one answer.

What is decided where. The child decodes the payload, calls the handler, encodes its output, and asks the type's retry
policy, for there the error is an exception still. The worker takes the answer for what a stranger says: it makes the next
job anew, checks the output and bounds every field, since one bad row would hold up the ends of all its other jobs.

How a child ends. After `max_jobs_per_child` attempts it is told to close, and its successor is started. One that is told to
stop an attempt (timed out, cancelled, lost, released) has half of `cancel_timeout` to end it by itself, then gets SIGTERM,
and at the end of it SIGKILL, with everything it has started. One that holds more than its type's memory limit is killed at
once. When it crashes, its exit is that attempt's failure, known at once from its status, not when a lease runs out. When the
worker dies, however it dies, the kernel kills its children (Linux), and everywhere they see the socket end.
"""

from sa_jobqueue.worker.run.isolation.children import Children, check_importable

__all__ = ["Children", "check_importable"]
