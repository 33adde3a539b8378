"""Finishing: what became of attempts, written in batches; continuations; unblocking."""
