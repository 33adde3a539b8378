"""Claiming: when to look for due jobs, which of them to take, and where each scan starts."""
