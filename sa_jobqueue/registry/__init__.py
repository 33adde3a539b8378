"""What an application declares in code: handlers, batches, queues, schedules, dependencies, middleware, selectors."""
