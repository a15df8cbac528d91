"""A server: OpenAI's protocol and a page to try models on. Read engine.py first, then protocol.py and app.py."""
