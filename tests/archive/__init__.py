"""The archive: what moves, what stays, and what a crash leaves."""
