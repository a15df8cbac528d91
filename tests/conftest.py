"""For every test: one torch thread, and no time limit per hypothesis example (machines are shared)."""

import torch
from hypothesis import settings

torch.set_num_threads(1)
settings.register_profile("minigpt", deadline=None)
settings.load_profile("minigpt")
