"""Waiting for a chain's end from outside the queue, in synchronous and in asynchronous code.

What to do is written once, in `steps`: a generator that does no I/O. It yields a statement to run, the wish to hear of
the end, or a rest, and is sent what came of it. `chains` and `aio` have what users call, `wait_chain`: two
small drivers that do the steps. `listeners` has the connections they listen on.

The order makes it safe. It listens, then marks the chain as awaited, then looks, then rests: whoever ends the chain after
the mark was committed tells, and the end by anybody else is seen by the look. What is lost all the same (a notification,
the listening connection, the mark because somebody held the row) costs latency, up to a poll. The mark is there because
nobody notifies of a chain that nobody awaits: commits with a notification take turns at one lock.
"""

from sa_jobqueue.waiting.chains import wait_chain

__all__ = ["wait_chain"]
