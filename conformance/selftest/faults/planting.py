"""Faults of attention in NumPy: the right steps, some of them replaced."""

from __future__ import annotations

from conformance.selftest.faults.fault import Fault
from conformance.selftest.faults.right_numpy import (
    RIGHT,
    Function,
    attention,
    attention_by,
    attention_logsumexp,
    attention_logsumexp_by,
    attention_weights,
    attention_weights_by,
)


def planted(rule: str, name: str, **steps: Function) -> Fault:
    """In `attention`, which gives no gradients."""
    return Fault(rule, name, "attention", attention_by(RIGHT._replace(**steps)), attention)


def of_weights(rule: str, name: str, **steps: Function) -> Fault:
    """In `attention_weights`."""
    function = attention_weights_by(RIGHT._replace(**steps))
    return Fault(rule, name, "attention_weights", function, attention_weights)


def of_logsumexp(rule: str, name: str, **steps: Function) -> Fault:
    """In `attention_logsumexp`."""
    function = attention_logsumexp_by(RIGHT._replace(**steps))
    return Fault(rule, name, "attention_logsumexp", function, attention_logsumexp)
