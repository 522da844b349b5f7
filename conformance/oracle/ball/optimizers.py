"""Optimizers' steps and gradient clipping in balls."""

from __future__ import annotations

from typing import Any

import numpy as np
from flint import arb

from conformance.oracle.ball.attention import Results
from conformance.oracle.ball.layers import number
from conformance.oracle.ball.tape import ONE, Leaves, Undecided, Variable, sqrt


def adam_step(leaves: Leaves, options: dict[str, Any]) -> Results:
    """theta - rate (m / (1 - beta_1^t) / (sqrt(v / (1 - beta_2^t)) + eps) + decay theta) (OPT-1)."""
    theta, gradient = leaves.read("parameters"), leaves.read("gradients")
    beta_1, beta_2 = number(options, "beta_1", 0.9), number(options, "beta_2", 0.999)
    decay, rate = number(options, "weight_decay", 0.0), number(options, "learning_rate", 0.0)
    step, decoupled = options["step"] + 1, options.get("decoupled", True)
    if not decoupled:
        gradient = gradient + theta * decay
    mean = leaves.read("mean") * beta_1 + gradient * (ONE - beta_1)
    square = leaves.read("square") * beta_2 + gradient * gradient * (ONE - beta_2)
    eps, corrected = number(options, "eps", 1e-8), ONE - beta_2**step
    deviation = sqrt(square / corrected) + eps
    if options.get("epsilon") == "square":
        deviation = sqrt(square / corrected + eps)
    elif options.get("epsilon") == "uncorrected":
        deviation = (sqrt(square) + eps) / corrected.sqrt()
    update = mean / (ONE - beta_1**step) / deviation
    if decoupled:
        update = update + theta * decay
    return {
        "parameters": theta - update * rate,
        "step": Variable(np.asarray(arb(step))),
        "mean": mean,
        "square": square,
    }


def sgd_step(leaves: Leaves, options: dict[str, Any]) -> Results:
    """theta - rate (velocity, or with nesterov gradient + momentum velocity) (OPT-2)."""
    theta, old = leaves.read("parameters"), leaves.read("velocity")
    momentum, rate = number(options, "momentum", 0.0), number(options, "learning_rate", 0.0)
    gradient = leaves.read("gradients") + theta * number(options, "weight_decay", 0.0)
    velocity = old * momentum + gradient
    update = gradient * (ONE + momentum) + old * momentum * momentum if options.get("nesterov") else velocity
    return {"parameters": theta - update * rate, "velocity": velocity}


def clip_by_global_norm(leaves: Leaves, options: dict[str, Any]) -> Results:
    """gradient limit / norm where the sum of squares exceeds limit^2 (OPT-3)."""
    gradients = {name: leaves.read(name) for name in leaves.floating_names()}
    total = arb(0)
    for gradient in gradients.values():
        total += sum((x * x for x in gradient.value.flat), arb(0))
    norm = total.sqrt()
    if np.isinf(options["limit"]):
        return gradients | {"norm": Variable(np.asarray(norm))}
    limit = number(options, "limit", 0.0)
    if "clipping" in options:  # what is added to the norm
        divisor = norm + arb(float(options["clipping"]))
        clipped, kept = divisor > limit, divisor <= limit
    else:
        divisor = norm
        clipped, kept = total > limit * limit, total <= limit * limit
    if not clipped and not kept:
        raise Undecided("whether the norm exceeds the limit")
    scaled = {name: gradient * limit / divisor if clipped else gradient for name, gradient in gradients.items()}
    return scaled | {"norm": Variable(np.asarray(norm))}
