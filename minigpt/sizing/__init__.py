"""The best model size for a text and a training time. Read law.py first."""
