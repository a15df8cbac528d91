"""Trained models in the formats of other programs, each with the proof that it is the same model."""
