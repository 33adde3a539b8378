"""Claiming: when to poll for due jobs, which of them to claim, and where each scan starts."""
