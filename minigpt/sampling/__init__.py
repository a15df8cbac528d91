"""Text from a trained model. Read generate.py first, then filters.py and draw.py (the token), stream.py (the text)."""
