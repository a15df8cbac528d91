"""How fast this machine trains, samples, tokenizes and reads data, beside other programs."""
