"""What a suite needs to test jobs against real PostgreSQL."""
