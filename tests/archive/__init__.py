"""The archive: moved rows, rows that stay, and crashes."""
