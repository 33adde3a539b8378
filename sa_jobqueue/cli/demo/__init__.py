"""A complete run of the queue on real input: `app` is the application, `command` runs it and checks the result."""
