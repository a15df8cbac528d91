"""The roofline of a card: an upper bound on the speed of a training on it."""

from minigpt.config.schema import TrainConfig
from minigpt.machine.choices import Choices
from minigpt.machine.hardware import Hardware, card_of, peak_flops
from minigpt.machine.memory import step_memory
from minigpt.model.counting import flops_per_token, sizes_of


def most_tokens_per_second(config: TrainConfig, choices: Choices, hardware: Hardware, vocab_size: int) -> float | None:
    """Return the bound for all devices together, or None if the device's data sheet is not known.

    A step takes as long as its matrix products at the card's peak (each score of causal attention once, none of the
    masked half), and then as the update's bytes, which are moved after the last gradient: gradients are read, weights
    and averages are read and written. All other kernels, launches and what devices send would come on top.
    """
    peak, card = peak_flops(hardware, choices.precision), card_of(hardware.name)
    if not peak or card is None:
        return None
    sizes, layers = sizes_of(config.model, vocab_size), config.model.n_layer
    matrices = layers * sizes.block_matrices + sizes.output
    attention = flops_per_token(config.model, vocab_size) - 6.0 * matrices
    of_matrix = 6.0 if config.adapter.name == "none" else 4.0  # frozen matrices get no gradient
    tokens = choices.micro_batch * choices.accumulate * config.model.block_size
    memory = step_memory(config, choices, vocab_size)
    products = tokens * (of_matrix * matrices + attention / 2) / peak
    update = (3 * memory.gradients + 2 * memory.optimizer) / (1e12 * card.bandwidth)
    return choices.devices * tokens / (products + update)
