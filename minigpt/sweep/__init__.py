"""Sweeps: many trainings with different settings, each in a process of its own, and which of them was best."""
