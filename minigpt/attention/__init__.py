"""The project's own attention. Read functional.py first, then layers.py; masks.py holds who may see whom.

linear.py is another way to attend, record.py looks at what a model attends to. docs/ATTENTION.md is the tour.
"""
