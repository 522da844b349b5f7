"""Known mistakes of merging attention over parts of the keys by the parts' log-sum-exps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from conformance.cases.arguments import gradient_name
from conformance.cases.arrays import listed
from conformance.cases.case import Case
from conformance.diagnosis.matching import Failing, Mistake, resulting
from conformance.diagnosis.steps import divided
from specification.dtypes import compute_dtype_name


class Parts(NamedTuple):
    """outputs [P, B, H, Q, V], 0 for what is not finite beside a log-sum-exp of -inf; logs [P, B, H, Q]."""

    outputs: np.ndarray
    logs: np.ndarray

    @property
    def seen(self) -> np.ndarray:
        return self.logs > -np.inf

    @property
    def maximum(self) -> np.ndarray:
        """0 where nothing is seen."""
        highest = self.logs.max(axis=0)
        return np.where(np.isfinite(highest), highest, 0)

    @property
    def exponentials(self) -> np.ndarray:
        return np.exp(self.logs - self.maximum)

    @property
    def logsumexp(self) -> np.ndarray:
        return self.maximum + np.log(self.exponentials.sum(axis=0))


def parts_of(case: Case) -> Parts:
    outputs, logs = (np.stack([a.astype(float) for a in listed(case.inputs, n)]) for n in ("outputs", "logsumexps"))
    return Parts(np.where(np.isfinite(outputs) | (logs[..., None] > -np.inf), outputs, 0), logs)


Results = dict[str, Any]
Merge = Callable[[Parts], Results | None]


def merging(name: str, merge: Merge) -> Mistake:
    return resulting(name, lambda failing: merge(parts_of(failing.case)))


def by_shares(p: Parts, shares: np.ndarray, total: np.ndarray | None = None) -> np.ndarray:
    """The outputs, weighed by shares of a total: their own, unless another one is given."""
    total = shares.sum(axis=0) if total is None else total
    return divided((shares[..., None] * p.outputs).sum(axis=0), total[..., None])


def weighed(shares: Callable[[Parts], np.ndarray], logsumexp: bool = True) -> Merge:
    """logsumexp: it is that of the right merge. Else the shares' sum gives it as well."""

    def merge(p: Parts) -> Results:
        found = shares(p)
        log = p.logsumexp if logsumexp else p.maximum + np.log(found.sum(axis=0))
        return {"output": by_shares(p, found), "logsumexp": log}

    return merge


def of_logs(logs: Callable[[Parts], np.ndarray]) -> Merge:
    """The merge with other log-sum-exps."""

    def merge(p: Parts) -> Results:
        other = p._replace(logs=logs(p))
        return {"output": by_shares(other, other.exponentials), "logsumexp": other.logsumexp}

    return merge


def of_some(chosen: Callable[[int], slice]) -> Merge:
    """Some of the parts are merged."""

    def merge(p: Parts) -> Results | None:
        some = chosen(len(p.logs))
        other = Parts(p.outputs[some], p.logs[some])
        if not 0 < len(other.logs) < len(p.logs):
            return None
        return {"output": by_shares(other, other.exponentials), "logsumexp": other.logsumexp}

    return merge


def online(start: int, rescale_output: bool, rescale_sum: bool) -> Merge:
    """One part after the other; from the part `start` on something is not rescaled when the maximum grows."""

    def merge(p: Parts) -> Results | None:
        if start > len(p.logs):
            return None
        maximum, total = np.full(p.logs[0].shape, -np.inf), np.zeros(p.logs[0].shape)
        output = np.zeros(p.outputs[0].shape)
        for number, (part, log) in enumerate(zip(p.outputs, p.logs, strict=True), 1):
            larger = np.maximum(maximum, log)
            safe = np.where(np.isfinite(larger), larger, 0)
            rescale, share = np.exp(maximum - safe), np.exp(log - safe)
            of_sum, of_output = (
                rescale if right or number < start else np.ones_like(rescale) for right in (rescale_sum, rescale_output)
            )
            total = total * of_sum + share
            output = output * of_output[..., None] + share[..., None] * part
            maximum = larger
        return {"output": divided(output, total[..., None]), "logsumexp": maximum + np.log(total)}

    return merge


def stale(p: Parts) -> Results | None:
    """One after the other; what is merged keeps the log-sum-exp of the first part."""
    if len(p.logs) < 2:
        return None
    output, log = p.outputs[0], p.logs[0]
    for part, other in zip(p.outputs[1:], p.logs[1:], strict=True):
        two = Parts(np.stack([output, part]), np.stack([log, other]))
        output = by_shares(two, two.exponentials)
    return {"output": output}


def equal(p: Parts) -> np.ndarray:
    return p.seen.astype(float)


def undivided(p: Parts) -> Results:
    return {"output": (p.exponentials[..., None] * p.outputs).sum(axis=0)}


def rows_of_nan(name: str, where: Callable[[Parts, str], Any]) -> Mistake:
    """NaN in some rows of what is wrong: of one of the results or of both. `where` gets the dtype of the case, too."""

    def results(failing: Failing) -> Results:
        p = parts_of(failing.case)
        rows = where(p, failing.case.dtype)
        right = {"output": (rows[..., None], by_shares(p, p.exponentials)), "logsumexp": (rows, p.logsumexp)}
        return {n: np.where(there, np.nan, a) if n in failing.wrong else a for n, (there, a) in right.items()}

    return resulting(name, results)


def not_zero(failing: Failing) -> Results | None:
    p, got = parts_of(failing.case), failing.answer("output")
    some: Any = p.seen.any(axis=0)
    if np.isnan(got[~some]).any():
        return None
    return {"output": np.where(some[..., None], by_shares(p, p.exponentials), got)}


def overflowing(name: str, maximum: Callable[[Parts], np.ndarray]) -> Mistake:
    """NaN where no exponential is held: a log-sum-exp lies too far above the maximum that is taken."""

    def where(p: Parts, dtype: str) -> np.ndarray:
        return ~(p.logs.max(axis=0) - maximum(p) < np.log(np.finfo(compute_dtype_name(dtype)).max))

    return rows_of_nan(f"{name}: exponentials overflow", where)


BASES = {
    "parts are merged by log-sum-exps in base 2 as if they were natural": 1 / np.log(2),
    "parts are merged by natural log-sum-exps as if they were in base 2": np.log(2),
}
PARTS = (2, 3, 4, 5, 6, 7, 8, 9, 16, 17, 32, 33, 64, 65, 128, 129)
RESCALING = {
    "the running sum is not rescaled when the maximum grows": (True, False),
    "the running output is not rescaled when the maximum grows": (False, True),
    "nothing is rescaled when the maximum grows": (False, False),
}

MISTAKES = (
    *(
        merging(name + (f" (from part {n} on)" if n > PARTS[0] else ""), online(n, *rescaled))
        for name, rescaled in RESCALING.items()
        for n in PARTS
    ),
    merging("the running log-sum-exp stays that of the first part", stale),
    merging("parts are merged with equal weights", weighed(equal)),
    merging("the weighted outputs are not divided by the sum of the weights", undivided),
    *(
        merging(name, weighed(lambda p, b=base: np.exp((p.logs - p.maximum) * b)))  # type: ignore[misc]
        for name, base in BASES.items()
    ),
    merging("parts get each other's weights: in reverse", weighed(lambda p: p.exponentials[::-1])),
    merging(
        "parts get each other's weights: those of the next part", weighed(lambda p: np.roll(p.exponentials, -1, 0))
    ),
    merging(
        "parts get each other's weights: those of the part before", weighed(lambda p: np.roll(p.exponentials, 1, 0))
    ),
    merging("weights are exp(maximum - log-sum-exp)", weighed(lambda p: divided(p.seen, p.exponentials))),
    merging("the last part is left out", of_some(lambda count: slice(count - 1))),
    merging("the first part is left out", of_some(lambda count: slice(1, None))),
    merging("the result is that of the last part", of_some(lambda count: slice(count - 1, None))),
    *(merging(f"parts past the first {n} are left out", of_some(lambda count, n=n: slice(n))) for n in PARTS),  # type: ignore[misc]
    merging("the result is that of the first part", of_some(lambda count: slice(1))),
    rows_of_nan("rows in which every part is -inf are NaN", lambda p, dtype: ~p.seen.any(axis=0)),
    resulting("rows in which every part is -inf hold other numbers than 0", not_zero),
    merging("a log-sum-exp of -inf is taken for 0", of_logs(lambda p: np.where(p.seen, p.logs, 0))),
    rows_of_nan("rows in which the first part is -inf are NaN", lambda p, dtype: ~p.seen[0]),
    rows_of_nan("rows in which the last part is -inf are NaN", lambda p, dtype: ~p.seen[-1]),
    rows_of_nan("rows in which some part is -inf are NaN", lambda p, dtype: ~p.seen.all(axis=0)),
    overflowing("the maximum is not subtracted", lambda p: np.zeros_like(p.maximum)),
    overflowing("the maximum is that of the first part", lambda p: p.logs[0]),
    merging("the log-sum-exp is the maximum alone", lambda p: {"logsumexp": p.logs.max(axis=0)}),
    merging("the log-sum-exp lacks the maximum", lambda p: {"logsumexp": p.logsumexp - p.maximum}),
    merging(
        "the logarithm of the sum is taken in base 2",
        lambda p: {"logsumexp": p.maximum + (p.logsumexp - p.maximum) / np.log(2)},
    ),
    merging("the log-sum-exp is the parts' sum", lambda p: {"logsumexp": p.logs.sum(axis=0)}),
    merging("the log-sum-exp is the parts' mean", lambda p: {"logsumexp": p.logs.mean(axis=0)}),
)


# --- gradients --------------------------------------------------------------------------------------------------------


def gradients(name: str, change: Callable[[Parts, np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]]) -> Mistake:
    """Gradients of all parts' outputs and log-sum-exps, from the cotangents of both results."""

    def results(failing: Failing) -> Results | None:
        case, p = failing.case, parts_of(failing.case)
        if not case.cotangents:
            return None
        bars = (case.cotangents[result].astype(float) for result in ("output", "logsumexp"))
        found = dict(zip(("outputs", "logsumexps"), change(p, *bars), strict=True))
        every = {gradient_name(f"{of}[{i}]"): a for of, arrays in found.items() for i, a in enumerate(arrays)}
        return {n: a for n, a in every.items() if n in failing.got}

    return resulting(name, results)


def backward(
    of_output: bool = True, of_logsumexp: bool = True, mean: bool = True, weighs: bool = True
) -> Callable[[Parts, np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]]:
    """of_output, of_logsumexp: which results reach the log-sum-exps. mean: it is subtracted. weighs: outputs' do."""

    def change(p: Parts, bar: np.ndarray, log_bar: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        weights = divided(p.exponentials, p.exponentials.sum(axis=0))
        output = by_shares(p, p.exponentials)
        of_parts = ((p.outputs - output * mean) * bar).sum(axis=-1)
        return (
            (weights if weighs else p.seen.astype(float))[..., None] * bar,
            weights * (of_parts * of_output + log_bar * of_logsumexp),
        )

    return change


GRADIENTS = (
    gradients("the output's part is missing in the gradients of log-sum-exps", backward(of_output=False)),
    gradients("the log-sum-exp's part is missing in the gradients of log-sum-exps", backward(of_logsumexp=False)),
    gradients("log-sum-exps are constants in the backward pass", backward(False, False)),
    gradients("the merged output is not subtracted in the gradients of log-sum-exps", backward(mean=False)),
    gradients("the weights are missing in the gradients of outputs", backward(weighs=False)),
)
MISTAKES += GRADIENTS
