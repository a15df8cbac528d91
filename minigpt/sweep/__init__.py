"""Sweeps: many trainings with different settings, each in a process of its own, and which of them was best.

Read settings.py first, then search.py and trial.py.
"""
