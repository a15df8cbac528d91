"""How fast minigpt trains and samples on this machine."""
