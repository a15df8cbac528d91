"""Checkpoints that survive: durable directories without pickle, verified before they are trusted."""
