"""Where text comes from: files found or fetched, read once to count them, and split."""
