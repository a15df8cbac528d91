"""Where text comes from: files are found or fetched, read once to count and check them, and split."""
