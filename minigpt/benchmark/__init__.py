"""How fast minigpt trains, samples and makes batches on this machine, beside other programs."""
