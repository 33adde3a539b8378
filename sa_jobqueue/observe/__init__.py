"""Observability: logs, metrics, traces, health reports. No lower layer imports this package."""
