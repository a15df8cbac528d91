"""Conversations: their roles as tokens, whole ones packed into windows, and generated ones."""
