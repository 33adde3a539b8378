"""The pipeline's SQL as functions, by the rules of `sa_jobqueue.statements`."""
