"""The GPT. Read gpt.py from top to bottom."""
