"""Training. run.py is the way in; each callback has a file named after what it does."""
