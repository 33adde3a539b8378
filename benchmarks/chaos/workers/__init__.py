"""One script a queue: how it is set up, how jobs are enqueued, how its worker runs. Each runs in the queue's environment."""
