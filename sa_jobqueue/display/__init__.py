"""Text that people read: printable characters, durations, redacted payloads, and lines about progress."""
