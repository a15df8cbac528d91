"""The project's own attention. Read functional.py first, then layers.py; masks.py defines which token sees which.

linear.py is another way to attend, record.py records attention weights. docs/ATTENTION.md is the tour.
"""
