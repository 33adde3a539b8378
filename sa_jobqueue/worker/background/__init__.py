"""Background duties: heartbeat, rescue, pruning, schedules, notifications, settings."""
