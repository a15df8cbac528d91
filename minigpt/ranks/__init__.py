"""The processes of one run: how they are started, meet, and end together; signals and SLURM."""
