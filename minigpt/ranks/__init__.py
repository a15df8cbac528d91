"""The processes of one run: signals, the group that they form, and the heartbeat between them."""
