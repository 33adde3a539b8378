"""What suites of durable-execution engines test, as one suite: each behaviour is here, or differs for a reason."""
