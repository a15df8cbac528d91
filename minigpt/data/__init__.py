"""Text to batches: corpus.py -> tokenizer.py -> shards.py -> order.py -> module.py."""
