"""Policies: when to retry, how long to keep, how fast to start. Pure: no clock and no I/O."""
