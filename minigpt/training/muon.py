"""Muon: a matrix moves by the nearest orthogonal matrix to its averaged gradient; all else moves by AdamW.

A gradient matrix is dominated by few directions. Made orthogonal, the update moves all directions by the same length,
which takes the blocks of a small GPT to the same loss in far fewer steps.

Source: Jordan et al. 2024, "Muon: An optimizer for hidden layers in neural networks"; coefficients of the iteration:
Amsel et al. 2025, "The Polar Express", table 1 (with the margin of its authors' code).
"""

from collections.abc import Iterable
from typing import Any

import torch
import torch.nn as nn
from torch import Tensor
from torch.optim.adamw import adamw as adamw_update

# Each line (a, b, c) is one step X <- a X + (b X X^T + c (X X^T)^2) X, which pushes all singular values towards 1.
POLYNOMIALS = (
    (4.0848, -6.8946, 2.9270),
    (3.9505, -6.3029, 2.6377),
    (3.7418, -5.5913, 2.3037),
    (2.8769, -3.1427, 1.2046),
    (2.8366, -3.0525, 1.2012),
)


def orthogonal(matrices: Tensor) -> Tensor:
    """Nearly the orthogonal matrix next to each: U V^T of its singular value decomposition U S V^T.

    Args:
        matrices: (N, rows, columns), rows <= columns; in bf16 or wider.

    Returns:
        As `matrices`; singular values between about 0.7 and 1.2.
    """
    X = matrices / (1.02 * torch.linalg.matrix_norm(matrices, keepdim=True) + 1e-7)
    for a, b, c in POLYNOMIALS:
        S = torch.bmm(X, X.mT)
        X = torch.baddbmm(X, torch.baddbmm(S, S, S, beta=b, alpha=c), X, beta=a)
    return X


class Muon(torch.optim.Optimizer):
    """One optimizer over a whole model: Muon for its matrices, AdamW for the rest.

    Matrices of one shape, up to transposition, are made orthogonal together.

    Args:
        matrices: 2-d parameters; the optimizer's first group.
        others: all other parameters, split into decayed (2-d) and undecayed: its second and third group.
        lr: of AdamW's part. Each group's is its `initial_lr`, which a schedule multiplies.
        matrix_lr: of Muon's part: the update of a square matrix has singular values of about this size.
        momentum: decay of the matrices' averaged gradient (Nesterov's form).
        betas: AdamW's.
        eps: AdamW's.
        weight_decay: decoupled, on all 2-d parameters.
        products: dtype of the iteration: bf16 where the hardware multiplies it fast.
    """

    def __init__(
        self,
        matrices: Iterable[nn.Parameter],
        others: Iterable[nn.Parameter],
        *,
        lr: float,
        matrix_lr: float,
        momentum: float,
        betas: tuple[float, float],
        eps: float,
        weight_decay: float,
        products: torch.dtype = torch.float32,
    ):
        others = list(others)
        decayed = [parameter for parameter in others if parameter.dim() >= 2]
        undecayed = [parameter for parameter in others if parameter.dim() < 2]
        groups: list[dict[str, Any]] = [
            {"params": list(matrices), "lr": matrix_lr, "weight_decay": weight_decay},
            {"params": decayed, "lr": lr, "weight_decay": weight_decay},
            {"params": undecayed, "lr": lr, "weight_decay": 0.0},
        ]
        super().__init__([group | {"initial_lr": group["lr"]} for group in groups if group["params"]], {})
        self.matrices = set(groups[0]["params"])
        self.momentum, self.betas, self.eps, self.products = momentum, betas, eps, products

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        """Update every parameter that has a gradient."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            parameters = [parameter for parameter in group["params"] if parameter.grad is not None]
            if parameters:
                self.begin(parameters)
                update = self.move_matrices if parameters[0] in self.matrices else self.move_others
                update(parameters, group["lr"], group["weight_decay"])
        return loss

    def begin(self, parameters: list[nn.Parameter]) -> None:
        """Make the averages of parameters that have none yet."""
        for parameter in parameters:
            if parameter not in self.state:
                names = ("momentum",) if parameter in self.matrices else ("exp_avg", "exp_avg_sq")
                self.state[parameter] = {name: torch.zeros_like(parameter) for name in names}
                if parameter not in self.matrices:
                    self.state[parameter]["step"] = torch.zeros((), dtype=torch.float32, device=parameter.device)

    def move_matrices(self, parameters: list[nn.Parameter], lr: float, weight_decay: float) -> None:
        """Muon: average, make orthogonal, step."""
        gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
        averages = [self.state[parameter]["momentum"] for parameter in parameters]
        torch._foreach_lerp_(averages, gradients, 1 - self.momentum)
        ahead = torch._foreach_lerp(gradients, averages, self.momentum)
        if weight_decay:
            torch._foreach_mul_(list[Tensor](parameters), 1 - lr * weight_decay)
        shapes: dict[tuple[int, ...], list[int]] = {}
        for index, parameter in enumerate(parameters):
            shapes.setdefault(tuple(sorted(parameter.shape)), []).append(index)
        for indices in shapes.values():
            upright = [parameters[index].shape[0] > parameters[index].shape[1] for index in indices]
            lying = [ahead[index].T if tall else ahead[index] for index, tall in zip(indices, upright, strict=True)]
            updates = orthogonal(torch.stack(lying).to(self.products)).to(parameters[0].dtype)
            for index, tall, update in zip(indices, upright, updates, strict=True):
                rows, columns = parameters[index].shape
                length = lr * max(1.0, rows / columns) ** 0.5  # so that outputs move as much for every shape
                parameters[index].add_(update.T if tall else update, alpha=-length)

    def move_others(self, parameters: list[nn.Parameter], lr: float, weight_decay: float) -> None:
        """AdamW, by torch's fused kernel."""
        states = [self.state[parameter] for parameter in parameters]
        adamw_update(
            list(parameters),
            [parameter.grad for parameter in parameters if parameter.grad is not None],
            [state["exp_avg"] for state in states],
            [state["exp_avg_sq"] for state in states],
            [],
            [state["step"] for state in states],
            fused=True,
            amsgrad=False,
            beta1=self.betas[0],
            beta2=self.betas[1],
            lr=lr,
            weight_decay=weight_decay,
            eps=self.eps,
            maximize=False,
        )
