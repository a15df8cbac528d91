"""Writes trained models in the formats of other programs, each with a proof that it is the same model."""
