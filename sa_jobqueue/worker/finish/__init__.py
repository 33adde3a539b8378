"""Results of attempts, written in batches; continuations; unblocking."""
