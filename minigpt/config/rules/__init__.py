"""The rules about several settings at once, and about what is on the disk: a file for each group of settings.

A rule is a function that yields a sentence for each fault, under `@rule(...)` with the settings that it reads.
"""

from minigpt.config.rules import commands, data, model, objective, training
from minigpt.config.rules.rule import NOTES, RULES, Check

__all__ = ["NOTES", "RULES", "Check", "commands", "data", "model", "objective", "training"]
