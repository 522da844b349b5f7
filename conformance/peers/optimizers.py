"""Optimizers and gradient clipping of `torch.optim`, `torch.nn.utils`, optax and Keras.

Each step is one call of the library, on a state that is set to what the case holds.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from conformance.cases.case import Case
from conformance.cases.declaration import declare
from conformance.peers.peer import Peer
from specification.dtypes import compute_dtype_name
from specification.optimizers import AdamState, SgdState

if TYPE_CHECKING:
    import jax
    import torch

WIDE = ("float32", "float64")


# --- torch ------------------------------------------------------------------------------------------------------------


def torch_adam(kind: str, **how: bool) -> Callable[..., Any]:
    @declare(dtypes=WIDE)
    def adam_step(
        parameters: torch.Tensor,
        gradients: torch.Tensor,
        state: AdamState,
        *,
        learning_rate: float,
        beta_1: float = 0.9,
        beta_2: float = 0.999,
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        decoupled: bool = True,
    ) -> Any:
        """Of a parameter in the dtype of its averages, which is what torch keeps."""
        import torch

        moving = parameters.clone().requires_grad_()
        moving.grad = gradients
        options = {"lr": learning_rate, "betas": (beta_1, beta_2), "eps": eps, "weight_decay": weight_decay}
        optimizer = getattr(torch.optim, kind)([moving], **options, **how)
        kept = {"step": torch.tensor(float(state.step)), "exp_avg": state.mean.clone()}
        optimizer.state[moving] = kept | {"exp_avg_sq": state.square.clone()}
        optimizer.step()
        after = optimizer.state[moving]
        return moving.detach(), AdamState(int(after["step"]), after["exp_avg"], after["exp_avg_sq"])

    return adam_step


@declare(dtypes=WIDE, conventions={"velocity": "momentum"})
def torch_sgd(
    parameters: torch.Tensor, gradients: torch.Tensor, state: SgdState, *, learning_rate: float, momentum: float = 0.0,
    nesterov: bool = False, weight_decay: float = 0.0,
) -> Any:  # fmt: skip
    """`torch.optim.SGD`."""
    import torch

    if parameters.dtype != state.velocity.dtype:
        raise NotImplementedError("torch keeps the velocity in the dtype of the parameters")
    moving = parameters.clone().requires_grad_()
    moving.grad = gradients
    options = {"lr": learning_rate, "momentum": momentum, "nesterov": nesterov, "weight_decay": weight_decay}
    optimizer = torch.optim.SGD([moving], **options)  # type: ignore[arg-type]
    optimizer.state[moving] = {"momentum_buffer": state.velocity.clone()}
    optimizer.step()
    return moving.detach(), SgdState(optimizer.state[moving]["momentum_buffer"])


@declare()
def torch_clip(gradients: list[torch.Tensor], limit: float) -> Any:
    """`torch.nn.utils.clip_grad_norm_`; its norm has the dtype of the gradients."""
    import torch

    owners = [torch.zeros_like(gradient).requires_grad_() for gradient in gradients]
    for owner, gradient in zip(owners, gradients, strict=True):
        owner.grad = gradient.clone()
    norm = torch.nn.utils.clip_grad_norm_(owners, limit)
    wide = getattr(torch, compute_dtype_name(str(norm.dtype).removeprefix("torch.")))
    return [owner.grad for owner in owners], norm.to(wide)


# --- optax ------------------------------------------------------------------------------------------------------------


@declare()
def optax_adamw(
    parameters: jax.Array, gradients: jax.Array, state: AdamState, *, learning_rate: float, beta_1: float = 0.9,
    beta_2: float = 0.999, eps: float = 1e-8, weight_decay: float = 0.0, decoupled: bool = True,
) -> Any:  # fmt: skip
    """`optax.adamw`."""
    import jax.numpy as jnp
    import optax

    optimizer = optax.adamw(learning_rate, beta_1, beta_2, eps, weight_decay=weight_decay)
    first, *others = optimizer.init(parameters)
    before = first._replace(count=jnp.asarray(state.step, jnp.int32), mu=state.mean, nu=state.square)
    updates, (after, *_) = optimizer.update(gradients, (before, *others), parameters)
    return optax.apply_updates(parameters, updates), AdamState(after.count, after.mu, after.nu)


@declare()
def optax_sgd(
    parameters: jax.Array, gradients: jax.Array, state: SgdState, *, learning_rate: float, momentum: float = 0.0,
    nesterov: bool = False,
) -> Any:  # fmt: skip
    """`optax.sgd`."""
    import optax

    optimizer = optax.sgd(learning_rate, momentum, nesterov)
    first, *others = optimizer.init(parameters)
    updates, (after, *_) = optimizer.update(gradients, (first._replace(trace=state.velocity), *others), parameters)
    return optax.apply_updates(parameters, updates), SgdState(after.trace)


@declare()
def optax_clip(gradients: list[jax.Array], limit: float) -> Any:
    """`optax.clip_by_global_norm`, and `optax.global_norm`."""
    import optax

    clipped, _ = optax.clip_by_global_norm(limit).update(gradients, optax.EmptyState())
    norm = optax.global_norm(gradients)
    return clipped, norm.astype(compute_dtype_name(str(norm.dtype)))


# --- Keras ------------------------------------------------------------------------------------------------------------


@declare(dtypes=("float32",))
def keras_adam(
    parameters: jax.Array, gradients: jax.Array, state: AdamState, *, learning_rate: float, beta_1: float = 0.9,
    beta_2: float = 0.999, eps: float = 1e-8, weight_decay: float = 0.0, decoupled: bool = True,
) -> Any:  # fmt: skip
    """`keras.optimizers.Adam`, whose weight decay is decoupled, by `stateless_apply`."""
    import jax.numpy as jnp
    import keras

    optimizer = keras.optimizers.Adam(learning_rate, beta_1, beta_2, eps, weight_decay=weight_decay or None)
    optimizer.build([keras.Variable(parameters)])
    iterations, rate, *_ = (variable.value for variable in optimizer.variables)
    before = [jnp.asarray(state.step, iterations.dtype), rate, state.mean, state.square]
    (moved,), (step, _, mean, square) = optimizer.stateless_apply(before, [gradients], [parameters])
    return moved, AdamState(step.astype(jnp.int32), mean, square)


# --- the paths --------------------------------------------------------------------------------------------------------


def decays(case: Case, decoupled: bool) -> bool:
    """Whether its weight decay is of that kind."""
    return bool(case.options.get("decoupled", True)) == decoupled


def decaying(case: Case, decoupled: bool) -> Case:
    if case.operation != "adam_step":
        return case
    return replace(case, options=case.options | {"decoupled": decoupled})


def adam(name: str, subject: str, arrays: str, packages: tuple[str, ...], decoupled: bool = True, **more: Any) -> Peer:
    takes, fitted = partial(decays, decoupled=decoupled), partial(decaying, decoupled=decoupled)
    return Peer(name, f"{__name__}:{subject}", "adam_step", arrays, packages, takes=takes, fitted=fitted, **more)


adam_of_torch, adamw_of_torch, fused_of_torch = torch_adam("Adam"), torch_adam("AdamW"), torch_adam("AdamW", fused=True)

PEERS = (
    adam("torch.optim.Adam", "adam_of_torch", "torch", ("torch",), decoupled=False),
    adam("torch.optim.AdamW", "adamw_of_torch", "torch", ("torch",)),
    adam("torch.optim.AdamW, fused", "fused_of_torch", "torch", ("torch",)),
    adam("optax.adamw", "optax_adamw", "jax", ("optax", "jax")),
    adam(
        "Keras on jax, optimizers.Adam",
        "keras_adam",
        "jax",
        ("keras", "jax"),
        environment={"KERAS_BACKEND": "jax"},
    ),
    Peer("torch.optim.SGD", f"{__name__}:torch_sgd", "sgd_step", "torch", ("torch",)),
    Peer("optax.sgd", f"{__name__}:optax_sgd", "sgd_step", "jax", ("optax", "jax")),
    Peer("torch.nn.utils.clip_grad_norm_", f"{__name__}:torch_clip", "clip_by_global_norm", "torch", ("torch",)),
    Peer("optax.clip_by_global_norm", f"{__name__}:optax_clip", "clip_by_global_norm", "jax", ("optax", "jax")),
)
