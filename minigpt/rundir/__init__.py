"""The run directory: its files and rows, and the loggers that get the rows too."""
