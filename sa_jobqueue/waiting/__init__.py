"""Waiting for the ends of chains from outside the queue, in synchronous and in asynchronous code.

The logic is written once, in `steps`, as a coroutine that is given an `Access`: its calls block a thread, or wait on a
loop. `chains` and `aio` have the public functions; `listeners` has the connections they listen on.

The order makes it safe: listen, mark the chain as having waiters, read its state, then pause. A transaction that ends the
chain after the mark was committed sends a notification; an earlier end is seen when the state is read. What can still be
lost (a notification, the listening connection, the mark because the row was locked) costs latency, up to a poll. The mark
exists so that chains without waiters send no notification: commits with a notification are serialized by one lock.
"""

from sa_jobqueue.waiting.chains import wait_chain, wait_chains

__all__ = ["wait_chain", "wait_chains"]
