"""Text becomes shards of tokens, once: in units of work, by several processes."""
