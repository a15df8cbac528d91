"""One token's step as native code, for the CPU."""
