"""Conversations: roles as tokens, whole conversations packed into windows, and generated conversations."""
