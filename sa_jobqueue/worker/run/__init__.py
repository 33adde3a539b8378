"""Running: handlers, their sessions, batches, dependencies, threads and child processes."""
