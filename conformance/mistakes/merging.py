"""Parts of the keys merged wrongly by their log-sum-exps (ATT-14)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from conformance.cases.arguments import gradient_name, is_gradient, list_arrays
from conformance.mistakes.call import Call, Results
from conformance.mistakes.changes import lose_results
from conformance.mistakes.mistake import Mistake, Topic, name_entries
from conformance.mistakes.softmax import divide
from specification.dtypes import compute_dtype_name


class Parts(NamedTuple):
    """outputs [P, B, H, Q, V], 0 for what is not finite beside a log-sum-exp of -inf; logs [P, B, H, Q]."""

    outputs: np.ndarray
    logs: np.ndarray

    @classmethod
    def read_call(cls, call: Call) -> Parts:
        outputs, logs = (np.stack([a.astype(float) for a in list_arrays(call.case.inputs, n)]) for n in ARGUMENTS)
        return cls(np.where(np.isfinite(outputs) | (logs[..., None] > -np.inf), outputs, 0), logs)

    @property
    def visible_parts(self) -> np.ndarray:
        return self.logs > -np.inf

    @property
    def maximum(self) -> np.ndarray:
        """0 where nothing is seen."""
        largest = self.logs.max(axis=0)
        return np.where(np.isfinite(largest), largest, 0)

    @property
    def exponentials(self) -> np.ndarray:
        return np.exp(self.logs - self.maximum)

    @property
    def weights(self) -> np.ndarray:
        return divide(self.exponentials, self.exponentials.sum(axis=0))

    @property
    def logsumexp(self) -> np.ndarray:
        return self.maximum + np.log(self.exponentials.sum(axis=0))


ARGUMENTS = ("outputs", "logsumexps")


def merge_by(
    call: Call,
    parts: Parts,
    shares: np.ndarray,
    terms: np.ndarray | None = None,
    *,
    slope: float = 1.0,
    order: slice | np.ndarray = slice(None),
    log: tuple[np.ndarray, np.ndarray] | None = None,
    bars: tuple[float, float, float] = (1.0, 1.0, 1.0),
) -> Results:
    """Weigh the parts' outputs by shares [P, B, H, Q], and divide by the sum of the terms, or of the shares if None.

    Args:
        slope: of the shares' and terms' logarithms by the log-sum-exps.
        order: of which part each share is.
        log: the log-sum-exp and its slope by each part's; the right one if None.
        bars: how often the log-sum-exps' gradients count that of the output, its mean and that of the log-sum-exp.
    """
    terms = shares if terms is None else terms
    shares, terms = (divide(array, terms.sum(axis=0)) for array in (shares, terms))
    value, slopes = (parts.logsumexp, parts.weights) if log is None else log
    results = {"output": (shares[..., None] * parts.outputs).sum(axis=0), "logsumexp": value}
    if not call.case.cotangents or call.case.special:
        return results
    bar, log_bar = (call.cotangent(name) for name in ("output", "logsumexp"))
    products, mean = ((array * bar).sum(axis=-1) for array in (parts.outputs, results["output"]))
    gradient = np.zeros_like(shares)
    gradient[order] = slope * (bars[0] * shares * products - bars[1] * terms * mean)
    results |= name_gradients("outputs", shares[..., None] * bar)
    return results | name_gradients("logsumexps", gradient + bars[2] * slopes * log_bar)


def name_gradients(name: str, gradients: np.ndarray) -> Results:
    return {gradient_name(f"{name}[{i}]"): array for i, array in enumerate(gradients)}


def entry(name: str, says: str, change: Callable[..., Any], **parameters: Any) -> Mistake:
    """`change(call, parts, **values)`."""

    def answer(call: Call, **values: object) -> Any:
        return change(call, Parts.read_call(call), **values)

    return Topic("merging", "ATT-14", ("merge_attention",)).entry(name, says, answer, **parameters)


# --- weights ----------------------------------------------------------------------------------------------------------


def run_online(call: Call, parts: Parts, first: int, lost: str) -> list[Results]:
    if first > len(parts.logs):
        return []
    shares, terms = np.zeros_like(parts.logs), np.zeros_like(parts.logs)
    maximum = np.full(parts.logs[0].shape, -np.inf)
    for i, log in enumerate(parts.logs):
        new = np.maximum(maximum, log)
        finite = np.where(np.isfinite(new), new, 0)
        factor = np.exp(maximum - finite)
        shares[:i] *= 1 if i + 1 >= first and lost != "sum" else factor
        terms[:i] *= 1 if i + 1 >= first and lost != "output" else factor
        shares[i] = terms[i] = np.exp(log - finite)
        maximum = new
    total = terms.sum(axis=0)
    log = parts.maximum + np.log(total), divide(terms, total)
    return drop_gradients(merge_by(call, parts, shares, terms, log=log))


def drop_gradients(results: Results) -> list[Results]:
    """Return results with gradients by constant maxima, and without any: these may be taken through the maxima."""
    return [results, {name: results[name] for name in ("output", "logsumexp")}]


def merge_one_by_one(call: Call, parts: Parts, slip: str) -> Results | None:
    """Without gradients. slip: the log-sum-exp stays the first part's, or the output is rounded every time."""
    output, first = parts.outputs[0], parts.logs[0]
    for more, log in zip(parts.outputs[1:], parts.logs[1:], strict=True):
        two = Parts(np.stack([output, more]), np.stack([first, log]))
        output = (two.weights[..., None] * two.outputs).sum(axis=0)
        if slip == "output is rounded every time":
            output, first = output.astype(call.case.dtype).astype(float), two.logsumexp
    return {"output": output} if len(parts.logs) > 1 else None


def keep_parts(kept: Callable[..., Any]) -> Callable[..., Results | None]:
    """Merge some of the parts, of their numbers from 0 on and from 1 - P to 0."""

    def change(call: Call, parts: Parts, **values: object) -> Results | None:
        numbers = np.arange(len(parts.logs))
        some = np.broadcast_to(kept(numbers, numbers - len(numbers) + 1, **values), numbers.shape)
        if some.all() or not some.any():
            return None
        return merge_by_logs(call, parts, np.where(some[:, None, None, None], parts.logs, -np.inf))

    return change


def merge_by_logs(call: Call, parts: Parts, logs: np.ndarray) -> Results:
    """The parts have other log-sum-exps."""
    other = parts._replace(logs=logs)
    return merge_by(call, parts, other.exponentials, log=(other.logsumexp, other.weights))


COUNTS = (2, 1, 3, 4, 5, 8, 9, 16, 17, 32, 33, 64, 65, 128)
BASES = {"base 2 as if they were natural": 1 / float(np.log(2)), "base e as if they were of base 2": float(np.log(2))}
ORDERS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "the next part": lambda numbers: np.roll(numbers, -1),
    "the part before": lambda numbers: np.roll(numbers, 1),
    "the part as far from the other end": lambda numbers: numbers[::-1],
}
WEIGHTS = (
    entry("not-rescaled", "the running {lost} is not rescaled when the maximum grows, from part {first} on",
          run_online, lost=("output", "sum", "output and sum"), first=(2, *COUNTS[2:])),
    entry("parts-past", "parts past the first {n} are left out", keep_parts(lambda i, back, n: i < n), n=COUNTS),
    entry("first-part", "the first part is left out", keep_parts(lambda i, back: i > 0)),
    entry("last-part", "the last part is left out", keep_parts(lambda i, back: back < 0)),
    entry("last-part-alone", "the result is that of the last part", keep_parts(lambda i, back: back == 0)),
    entry("one-by-one", "parts are merged one by one, and the {slip}", merge_one_by_one,
          slip=("log-sum-exp stays that of the first part", "output is rounded every time")),
    entry("equal-weights", "parts are merged with equal weights",
          lambda call, parts: merge_by(call, parts, parts.visible_parts * 1.0, slope=0)),
    entry("base", "parts are merged by log-sum-exps in {base}", lambda call, parts, base: merge_by(
              call, parts, np.exp((parts.logs - parts.maximum) * BASES[base]), slope=BASES[base]), base=tuple(BASES)),
    entry("inverse-weights", "weights are exp(maximum - log-sum-exp)",
          lambda call, parts: merge_by(call, parts, divide(parts.visible_parts, parts.exponentials), slope=-1)),
    entry("weights-moved", "parts get the weight of {part}",
          lambda call, parts, part: merge_by(
              call, parts, parts.exponentials[order := ORDERS[part](np.arange(len(parts.logs)))], order=order
          ), part=tuple(ORDERS)),
    entry("infinity-taken-for-zero", "a log-sum-exp of -inf is taken for 0",
          lambda call, parts: None if (seen := parts.visible_parts).all() else merge_by_logs(
              call, parts, np.where(seen, parts.logs, 0))),
    entry("not-divided", "the weighted outputs are not divided by the sum of the weights",
          lambda call, parts: drop_gradients(
              merge_by(call, parts, e := parts.exponentials, np.full_like(e, 1 / len(e)), bars=(1, 0, 1))
          )),
)  # fmt: skip

# --- log-sum-exps -----------------------------------------------------------------------------------------------------


def lose_rows(call: Call, parts: Parts, which: str) -> list[Results]:
    """Rows in which log-sum-exps are -inf are NaN, in both results or in one: -inf - -inf, or 0 / 0."""
    seen = parts.visible_parts
    rows = {"every": ~seen.any(axis=0), "some": ~seen.all(axis=0), "the first": ~seen[0], "the last": ~seen[-1]}[which]
    if not rows.any():
        return []
    output, log = np.where(rows[..., None], np.nan, call.right["output"]), np.where(rows, np.nan, parts.logsumexp)
    return [{"output": output, "logsumexp": log}, {"output": output}, {"logsumexp": log}]


def overflow(call: Call, parts: Parts, maximum: str) -> list[Results]:
    """Exponentials that are not held: infinity / infinity, or 0 / 0, which may be kept at 0."""
    subtracted = np.zeros_like(parts.logs[0]) if maximum == "no maximum" else np.nan_to_num(parts.logs[0], neginf=0)
    held = np.finfo(compute_dtype_name(call.case.dtype))
    largest = parts.logs.max(axis=0) - subtracted
    above, below = largest > np.log(held.max), largest < np.log(held.smallest_subnormal) - 1
    if not (above | (below & parts.visible_parts.any(axis=0))).any():
        return []
    log = np.where(above, np.inf, np.where(below, -np.inf, parts.logsumexp))
    lost, kept = above[..., None], below[..., None]
    return [
        {"output": np.where(lost, np.nan, np.where(kept, rest, call.right["output"])), "logsumexp": log}
        for rest in (0.0, np.nan)
    ]


def log_entry(name: str, says: str, log: Callable[[Parts], tuple[Any, Any]]) -> Mistake:
    """`log(parts)`: the log-sum-exp, and its slope by each part's; the output is right."""
    return entry(name, says, lambda call, parts: merge_by(call, parts, parts.exponentials, log=log(parts)))


def mark_largest(parts: Parts) -> np.ndarray:
    return np.asarray(parts.exponentials == 1) * 1.0


LOGS = (
    entry("rows-lost", "rows in which the log-sum-exp of {which} part is -inf are NaN", lose_rows,
          which=("every", "the first", "the last", "some")),
    entry("overflow", "{maximum} is subtracted: exponentials overflow", overflow,
          maximum=("no maximum", "the log-sum-exp of the first part")),
    log_entry("log-is-maximum", "the log-sum-exp is the maximum alone",
              lambda parts: (parts.logs.max(axis=0), mark_largest(parts))),
    log_entry("log-lacks-maximum", "the log-sum-exp lacks the maximum",
              lambda parts: (parts.logsumexp - parts.maximum, parts.weights - mark_largest(parts))),
    log_entry("log-in-base-2", "the logarithm of the sum is taken in base 2",
              lambda parts: (parts.maximum + np.log2(parts.exponentials.sum(axis=0)),
                             mark_largest(parts) + (parts.weights - mark_largest(parts)) / np.log(2))),
    log_entry("log-added", "the log-sum-exp is the sum of those of the parts",
              lambda parts: (parts.logs.sum(axis=0), np.ones_like(parts.logs))),
)  # fmt: skip


# --- gradients alone, and extents -------------------------------------------------------------------------------------


GRADIENTS = (
    *(
        entry(f"gradient-{name}", says, lambda call, parts, bars=bars: {
            n: a for n, a in merge_by(call, parts, parts.exponentials, bars=bars).items() if is_gradient(n)})
        for name, says, bars in (
            ("without-output", "the output's part is missing in the gradients of log-sum-exps", (0, 0, 1)),
            ("without-log", "the log-sum-exp's part is missing in the gradients of log-sum-exps", (1, 1, 0)),
            ("of-constants", "log-sum-exps are constants in the backward pass", (0, 0, 0)),
            ("without-mean", "the merged output is not subtracted in the gradients of log-sum-exps", (1, 0, 1)),
        )
    ),
    entry("gradient-without-weights", "the weights are missing in the gradients of outputs",
          lambda call, parts: name_gradients("outputs", parts.visible_parts[..., None] * call.cotangent())
          if call.case.cotangents else {}),
)  # fmt: skip


def lose_rest(call: Call, parts: Parts, n: int, things: str) -> Results | None:
    kept = np.arange(parts.outputs.shape[1 + AXES[things]]) < n
    found = lose_results(call, np.expand_dims(kept, [axis for axis in range(4) if axis != AXES[things]]))
    if found is None or not call.case.special:
        return found
    return {name: array for name, array in found.items() if not is_gradient(name)}


AXES = {"queries": 2, "heads": 1, "columns": 3}
REST = entry("rest", "{things} past the first {n} are 0", lose_rest, things=tuple(AXES),
             n=(64, 32, 128, 256, 1024, 32768))  # fmt: skip

MISTAKES = (*WEIGHTS, *LOGS, *GRADIENTS, REST)
NAMED = name_entries(MISTAKES)
PLANTED = (
    *(mistake.choose() for mistake in MISTAKES),
    *(NAMED["not-rescaled"].choose(lost=lost) for lost in ("sum", "output and sum")),
    *(NAMED["parts-past"].choose(n=n) for n in (8, 32)),
    NAMED["base"].choose(base="base e as if they were of base 2"),
    *(NAMED["rows-lost"].choose(which=which) for which in ("the first", "some")),
    NAMED["one-by-one"].choose(slip="output is rounded every time"),
    *(REST.choose(things=things, n=n) for things, n in
      (("queries", 1024), ("queries", 32768), ("columns", 64), ("columns", 256), ("heads", 32), ("heads", 64))),
)  # fmt: skip
