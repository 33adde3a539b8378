"""The rehearsal of an upgrade: the release before and this one work on the same tables, each in processes of its own."""
