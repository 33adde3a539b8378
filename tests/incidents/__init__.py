"""Troubles that an on-call person meets, staged on a real database with real workers."""
