"""Sweeps: many trainings with different settings, each a process of its own, and who of them won."""
