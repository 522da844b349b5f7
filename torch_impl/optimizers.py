"""Optimizers and gradient clipping in PyTorch (rules OPT-1 to OPT-3), as `reference_numpy/optimizers.py` defines them.

Nothing is recorded for autograd: results need no gradient.

`torch._foreach_*` are what `torch.optim` is made of: each goes over all arrays at once, and on CUDA in few kernels.
Those that end in _ change only what was made here.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import torch
from jaxtyping import Float
from torch.optim.optimizer import ParamsT

from specification import checks
from specification.optimizers import AdamState, SgdState
from specification.parameters import Parameters, Tree, leaves, mapped
from torch_impl.dtypes import widen
from torch_impl.masks import readable

__all__ = ["Adam", "adam_start", "adam_step", "clip_by_global_norm", "sgd_start", "sgd_step"]

LEAST_NORM = 2.0**-40
"""With a norm at least as large, the squares that float32 loses come to less than a rounding of it: 2^40 numbers below
2^-75, whose squares are below 2^-150, add up to 2^-110, and half a rounding of 2^-80 is 2^-104."""
LEAST_EPS = 2.0**-38
"""A larger eps hides every root below 2^-63, that of the least normal number of float32: half a rounding of eps is
2^-62."""


def zeros(parameters: Parameters) -> Parameters:
    """A tree like the parameters, of zeros in the compute dtype."""
    checks.trained("parameters", parameters)
    return mapped(lambda parameter: torch.zeros_like(widen(parameter)), parameters)


def wide(tree: Parameters, like: Parameters) -> tuple[torch.Tensor, ...]:
    """The arrays of a tree in the compute dtype, in the order of another one, whose dicts may have another order."""
    arrays = leaves(tree)
    return tuple(widen(arrays[path]) for path in leaves(like))


def promote_leaves(tree: Tree) -> list[torch.Tensor]:
    """All arrays of a tree, in the widest of their compute dtypes."""
    arrays = wide(tree, tree)
    dtype = torch.float64 if any(array.dtype == torch.float64 for array in arrays) else torch.float32
    return [array.to(dtype) for array in arrays]


def placed(arrays: Iterable[torch.Tensor], like: Parameters) -> Parameters:
    """The arrays as a tree of the form of another one."""
    following = iter(arrays)
    return mapped(lambda _: next(following), like)


def rounded(arrays: Iterable[torch.Tensor], like: Parameters) -> Parameters:
    """The arrays as a tree of the form and the dtypes of another one."""
    return mapped(lambda new, old: new.to(old.dtype), placed(arrays, like), like)


# --- Adam -------------------------------------------------------------------------------------------------------------


def adam_start(parameters: Tree) -> AdamState:
    """Make the state of Adam before its first step: step 0, mean and square 0 (OPT-1).

    Args:
        parameters: A tree of arrays in float16, bfloat16, float32 or float64.

    Returns:
        An `AdamState`, whose mean and square are in the compute dtype.

    Raises:
        TypeError: An array of another dtype.
        ValueError: A tree without arrays.
    """
    return AdamState(0, zeros(parameters), zeros(parameters))


def take_roots_(squares: tuple[torch.Tensor, ...], eps: float) -> None:
    """Replace numbers by their roots, where those that vanish beside eps may be too large."""
    if eps > LEAST_EPS:
        # MKL takes six times as long for the root of 0, and forty times for that of a subnormal number.
        torch._foreach_clamp_min_(squares, [torch.finfo(array.dtype).tiny for array in squares])
    torch._foreach_sqrt_(squares)


def bias_correction(beta: float, step: int) -> float:
    """1 - beta^step, to its last digits for a beta near 1 too."""
    return -math.expm1(step * math.log(beta)) if beta > 0 else 1.0


@torch.no_grad()
def adam_step(
    parameters: Parameters,
    gradients: Tree,
    state: AdamState,
    *,
    learning_rate: float | Float[torch.Tensor, ""],
    beta_1: float = 0.9,
    beta_2: float = 0.999,
    eps: float = 1e-8,
    weight_decay: float = 0.0,
    decoupled: bool = True,
) -> tuple[Parameters, AdamState]:
    """Move the parameters by one step of Adam (OPT-1).

    Kingma and Ba, arXiv 1412.6980, algorithm 1; decoupled weight decay is AdamW, Loshchilov and Hutter, arXiv
    1711.05101. With t = state.step + 1, for every element:

        mean = beta_1 mean + (1 - beta_1) gradient
        square = beta_2 square + (1 - beta_2) gradient^2
        update = mean / (1 - beta_1^t) / (sqrt(square / (1 - beta_2^t)) + eps)
        parameter = (1 - learning_rate weight_decay) parameter - learning_rate update

    Args:
        parameters: A tree of arrays in float16, bfloat16, float32 or float64.
        gradients: A tree of the same form, each array in its parameter's dtype or in the compute dtype.
        state: That of the step before, or what `adam_start` makes.
        learning_rate: At least 0; a tensor of rank 0 is read.
        beta_1: The decay of the mean, in [0, 1).
        beta_2: The decay of the square, in [0, 1).
        eps: Added to the root; at least 2^-126.
        weight_decay: At least 0.
        decoupled: Whether parameters shrink by learning_rate weight_decay, as above. False adds weight_decay parameter
            to the gradient instead.

    Returns:
        (parameters, state), both new. Parameters are computed in the compute dtype and rounded once to their own; mean
        and square stay in the compute dtype.

    Raises:
        TypeError: Dtypes or structures that are not as described.
        ValueError: Shapes or numbers that are not as described.
    """
    checks.adam(parameters, gradients, state, learning_rate, beta_1, beta_2, eps, weight_decay, decoupled)
    learning_rate = float(learning_rate)
    step = int(state.step) + 1
    correction_1, correction_2 = bias_correction(beta_1, step), bias_correction(beta_2, step)
    kept = 1 - learning_rate * weight_decay if decoupled else 1.0
    gradient = decayed(gradients, parameters, 0.0 if decoupled else weight_decay)
    mean = torch._foreach_mul(wide(state.mean, parameters), beta_1)
    torch._foreach_add_(mean, gradient, alpha=1 - beta_1)
    square = torch._foreach_mul(wide(state.square, parameters), beta_2)
    torch._foreach_addcmul_(square, gradient, gradient, 1 - beta_2)
    update = torch._foreach_div(square, correction_2)
    take_roots_(update, eps)
    torch._foreach_add_(update, eps)
    torch._foreach_reciprocal_(update)
    torch._foreach_mul_(update, mean)
    moved = update  # the memory of the update, which is many megabytes, becomes that of the new parameters
    torch._foreach_mul_(moved, -learning_rate / correction_1)
    torch._foreach_add_(moved, wide(parameters, parameters), alpha=kept)
    return rounded(moved, parameters), AdamState(step, placed(mean, parameters), placed(square, parameters))


def decayed(gradients: Tree, parameters: Parameters, weight_decay: float) -> tuple[torch.Tensor, ...]:
    """gradient + weight_decay parameter, in the compute dtype."""
    if weight_decay == 0:
        return wide(gradients, parameters)
    return torch._foreach_add(wide(gradients, parameters), wide(parameters, parameters), alpha=weight_decay)


# --- gradient descent -------------------------------------------------------------------------------------------------


def sgd_start(parameters: Tree) -> SgdState:
    """Make the state of gradient descent before its first step: velocity 0 (OPT-2).

    Args:
        parameters: A tree of arrays in float16, bfloat16, float32 or float64.

    Returns:
        An `SgdState`, whose velocity is in the compute dtype.

    Raises:
        TypeError: An array of another dtype.
        ValueError: A tree without arrays.
    """
    return SgdState(zeros(parameters))


@torch.no_grad()
def sgd_step(
    parameters: Parameters,
    gradients: Tree,
    state: SgdState,
    *,
    learning_rate: float | Float[torch.Tensor, ""],
    momentum: float = 0.0,
    nesterov: bool = False,
    weight_decay: float = 0.0,
) -> tuple[Parameters, SgdState]:
    """Move the parameters by one step of gradient descent with momentum (OPT-2).

    Sutskever et al., "On the importance of initialization and momentum in deep learning" (2013), as PyTorch writes it:
    the gradient enters the velocity whole, at the first step too, and the learning rate multiplies the velocity. For
    every element:

        gradient = gradient + weight_decay parameter
        velocity = momentum velocity + gradient
        update = gradient + momentum velocity if nesterov else velocity
        parameter = parameter - learning_rate update

    Args:
        parameters: A tree of arrays in float16, bfloat16, float32 or float64.
        gradients: A tree of the same form, each array in its parameter's dtype or in the compute dtype.
        state: That of the step before, or what `sgd_start` makes.
        learning_rate: At least 0; a tensor of rank 0 is read.
        momentum: In [0, 1).
        nesterov: Whether to look ahead, as above; needs a momentum above 0.
        weight_decay: At least 0.

    Returns:
        (parameters, state), both new. Parameters are computed in the compute dtype and rounded once to their own; the
        velocity stays in the compute dtype.

    Raises:
        TypeError: Dtypes or structures that are not as described.
        ValueError: Shapes or numbers that are not as described.
    """
    checks.sgd(parameters, gradients, state, learning_rate, momentum, nesterov, weight_decay)
    learning_rate = float(learning_rate)
    gradient = decayed(gradients, parameters, weight_decay)
    velocity = torch._foreach_mul(wide(state.velocity, parameters), momentum)
    torch._foreach_add_(velocity, gradient)
    update = torch._foreach_add(gradient, velocity, alpha=momentum) if nesterov else velocity
    moved = torch._foreach_add(wide(parameters, parameters), update, alpha=-learning_rate)
    return rounded(moved, parameters), SgdState(placed(velocity, parameters))


# --- clipping ---------------------------------------------------------------------------------------------------------


def clipped_in_range(
    arrays: list[torch.Tensor], limit: float
) -> tuple[tuple[torch.Tensor, ...], Float[torch.Tensor, ""]] | None:
    """What `clip_by_global_norm` gives, in one reading; None where a square that matters may have left the range."""
    norm = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(arrays)))
    value = readable(norm)
    if value is None or not LEAST_NORM <= value < math.inf or limit / float(value) < torch.finfo(norm.dtype).tiny:
        return None
    return torch._foreach_mul(arrays, torch.where(norm > limit, limit / norm, 1)), norm


@torch.no_grad()
def clip_by_global_norm(gradients: Parameters, limit: float) -> tuple[Parameters, Float[torch.Tensor, ""]]:
    """Scale gradients by limit / norm where their norm exceeds the limit (OPT-3).

    Pascanu et al., "On the difficulty of training recurrent neural networks", arXiv 1211.5063, algorithm 1. norm is the
    root of the sum of squares of all elements of all arrays. Elements are divided by the largest of them before they
    are squared, so that no square overflows or vanishes.

    Where an element is NaN or infinite, every gradient is returned as it is, and norm is NaN or infinite: what went
    wrong stays where it arose, and `norm` says so.

    Args:
        gradients: A tree of arrays in float16, bfloat16, float32 or float64.
        limit: Above 0. With infinity nothing is scaled, and norm is measured.

    Returns:
        (gradients, norm): a new tree in the dtypes of the gradients, each element rounded once; and the norm before
        scaling, an array of rank 0, in float64 where one of the gradients is float64, else in float32.

    Raises:
        TypeError: An array of another dtype, or a limit that is no number.
        ValueError: A tree without arrays, or another limit.
    """
    checks.clip(gradients, limit)
    arrays = promote_leaves(gradients)
    if (quick := clipped_in_range(arrays, limit)) is not None:
        return rounded(quick[0], gradients), quick[1]
    largest = torch.stack([array.abs().max() for array in arrays if array.numel()] or [arrays[0].sum()]).max()
    finite = torch.isfinite(largest)
    unit = torch.where(finite & (largest > 0), largest, 1)
    ratio = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(torch._foreach_div(arrays, unit))))
    norm = torch.where(finite, unit * ratio, largest)
    clipped = finite & (norm > limit)
    # What is not clipped is divided and multiplied by 1, which changes no number.
    scaled = torch._foreach_div(arrays, torch.where(clipped, unit, 1))
    torch._foreach_mul_(scaled, torch.where(clipped, limit / ratio, 1))
    return rounded(scaled, gradients), norm


# --- for torch.optim --------------------------------------------------------------------------------------------------


OPTIONS = ("beta_1", "beta_2", "eps", "weight_decay", "decoupled")
"""What a group of parameters hands to `adam_step` under the same name."""


class Adam(torch.optim.Optimizer):
    """`adam_step` as an optimizer of PyTorch, for `LambdaLR`, parameter groups and state dicts (OPT-1).

    Args:
        params: Tensors, named tensors, or dicts of them with options of their own.
        lr: The learning rate, under the name by which schedulers find it.
        beta_1: As for `adam_step`, like all that follow.
        beta_2: See `adam_step`.
        eps: See `adam_step`.
        weight_decay: See `adam_step`.
        decoupled: See `adam_step`.

    Raises:
        TypeError: At a step, dtypes or structures that `adam_step` refuses.
        ValueError: At a step, numbers that `adam_step` refuses.
    """

    def __init__(
        self,
        params: ParamsT,
        lr: float = 1e-3,
        *,
        beta_1: float = 0.9,
        beta_2: float = 0.999,
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        decoupled: bool = True,
    ) -> None:
        options = {"beta_1": beta_1, "beta_2": beta_2, "eps": eps, "weight_decay": weight_decay, "decoupled": decoupled}
        super().__init__(params, {"lr": lr} | options)

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        """Move every parameter that has a gradient.

        Args:
            closure: Computes the loss and the gradients anew, or None.

        Returns:
            What the closure returns.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            options = {name: value for name, value in group.items() if name in OPTIONS}
            parameters = [parameter for parameter in group["params"] if parameter.grad is not None]
            for parameter in parameters:
                if not self.state[parameter]:
                    self.state[parameter] = adam_start(parameter)._asdict()
            steps = [self.state[parameter]["step"] for parameter in parameters]
            for number in set(steps):
                some = [p for p, step in zip(parameters, steps, strict=True) if step == number]
                self.move(some, group["lr"], options)
        return loss

    def move(self, parameters: list[torch.Tensor], learning_rate: float, options: dict[str, Any]) -> None:
        """One step of parameters that have taken as many."""
        states = [AdamState(**self.state[parameter]) for parameter in parameters]
        state = AdamState(states[0].step, [state.mean for state in states], [state.square for state in states])
        gradients = [parameter.grad for parameter in parameters]
        new, state = adam_step(parameters, gradients, state, learning_rate=learning_rate, **options)
        torch._foreach_copy_(parameters, new)
        for parameter, mean, square in zip(parameters, state.mean, state.square, strict=True):
            self.state[parameter] = AdamState(state.step, mean, square)._asdict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take up the state of another optimizer of this kind.

        Args:
            state_dict: What its `state_dict` returned.
        """
        super().load_state_dict(state_dict)
        # PyTorch rounds every state to its parameter's dtype; those of 16 bits keep theirs in float32.
        names = [name for group in state_dict["param_groups"] for name in group["params"]]
        parameters = [parameter for group in self.param_groups for parameter in group["params"]]
        for name, parameter in zip(names, parameters, strict=True):
            if name in state_dict["state"]:
                self.state[parameter] = mapped(
                    lambda value, device=parameter.device: value.to(device) if torch.is_tensor(value) else value,
                    state_dict["state"][name],
                )
