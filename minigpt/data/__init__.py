"""Text to batches: sources/ -> readers/ -> tokenizer.py -> preparing/ -> shards.py -> order.py -> batch.py."""
