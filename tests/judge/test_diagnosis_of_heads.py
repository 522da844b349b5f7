"""Names of known mistakes of multi-head attention, of merging, of masks in blocks, and of gradients of sinks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from conformance.diagnosis.backward import is_answer, sink_sums
from conformance.diagnosis.matches import known
from conformance.diagnosis.naming import diagnosis, explaining

import conformance
import reference_numpy
from conformance.bounds import bound
from conformance.cases.case import Case
from conformance.checks.catalogue import AGREEMENT
from conformance.checks.comparison import worst
from conformance.checks.results import Violation
from conformance.judge.thresholds import thresholds_of
from conformance.oracle.reference import oracle
from conformance.reports.threshold_sentences import describe_thresholds
from conformance.runner.dimensions import Part, taken
from conformance.runner.in_process import Runner
from conformance.subjects.targets import Target
from reference_numpy.multi_head_attention import concatenate_heads, join_heads, linear, split_heads
from specification import Causal, KeyLengths, Linear, Segments, SlidingWindow
from tests.judge.test_diagnosis import attend, changed_gradients, drawn, failing, told
from tests.judge.test_thresholds import smallest

Function = Callable[..., Any]

# --- multi-head attention ---------------------------------------------------------------------------------------------


def heads_case(H: int = 4, G: int = 2, D: int = 3, V: int = 3, E: int = 5, separate: bool = False, **more: Any) -> Case:
    """more: B, Q, K; the widths of key, value and output; biased."""
    B, Q, K = (more.get(name, size) for name, size in (("B", 2), ("Q", 3), ("K", 4)))
    generator = np.random.default_rng(0)
    columns = {"query": (H, D), "key": (G, D), "value": (G, V)}
    shapes = {"query": (B, Q, E), "key": (B, K, more.get("key", E)), "value": (B, K, more.get("value", E))}
    for name, (heads, width) in columns.items():
        count, out = (heads, width) if separate else (1, heads * width)
        for head in range(count):
            prefix = f"{name}[{head}]" if separate else name
            shapes |= {f"{prefix}.weight": (shapes[name][2], out)}
            shapes |= {f"{prefix}.bias": (out,)} if more.get("biased", True) else {}
    outer = more.get("output", E)
    shapes |= {"output.weight": (H * V, outer), "output.bias": (outer,)}
    inputs = {name: generator.normal(size=shape).astype("float32") for name, shape in shapes.items()}
    return Case("multi_head_attention", "float32", inputs, {"num_heads": H})


def layer(change: Function | None = None, split: Any = split_heads, join: Any = concatenate_heads, attends: Any = None):
    """Multi-head attention with other projections, or another attention, or heads split or joined in another way."""

    def multi_head_attention(parameters: Any, query: Any, key: Any, value: Any, *, num_heads: int) -> Any:
        parts = [*map(join_heads, parameters[:3]), parameters.output]
        G = parts[1].weight.shape[1] // max(parts[0].weight.shape[1] // num_heads, 1)
        parts, arrays = change(parts, [query, key, value]) if change else (parts, [query, key, value])
        counts = (num_heads, G, G)
        heads = [split(linear(p, x), n) for p, x, n in zip(parts, arrays, counts, strict=False)]
        return linear(parts[3], join((attends or attend)(*heads)))

    return multi_head_attention


def unbiased(*which: int) -> Function:
    return lambda parts, arrays: ([Linear(p.weight) if i in which else p for i, p in enumerate(parts)], arrays)


def of_weights(form: Function, *which: int) -> Function:
    return lambda parts, arrays: (
        [Linear(form(p.weight), p.bias) if i in which else p for i, p in enumerate(parts)],
        arrays,
    )


def interleaved(x: Any, heads: int) -> Any:
    return x.reshape(*x.shape[:2], -1, heads).transpose(0, 3, 1, 2)


def in_order(order: Any) -> Function:
    return lambda q, k, v: attend(q, k, v)[:, order]


def biases_past(n: int) -> Function:
    def change(parts: Any, arrays: Any) -> Any:
        return [
            Linear(p.weight, None if p.bias is None else np.where(np.arange(len(p.bias)) < n, p.bias, 0)) for p in parts
        ], arrays

    return change


LAYERS: list[tuple[str, Function, Case]] = [
    ("biases of projections are ignored (value)", layer(unbiased(2)), heads_case()),
    ("biases of projections are ignored (query, key, value)", layer(unbiased(0, 1, 2)), heads_case(separate=True)),
    ("weights of projections are transposed (output)", layer(of_weights(np.transpose, 3)), heads_case(E=12)),
    (
        "weights of projections are transposed (query, output)",
        layer(of_weights(np.transpose, 0, 3)),
        heads_case(E=12, key=5, value=5),
    ),
    (
        "heads are interleaved: column c belongs to head c % H (query, key, value)",
        layer(split=interleaved),
        heads_case(),
    ),
    (
        "heads are split without exchanging the axes of heads and positions",
        layer(split=lambda x, n: x.reshape(x.shape[0], n, x.shape[1], -1)),
        heads_case(),
    ),
    (
        "heads are joined without exchanging the axes of heads and positions",
        layer(join=lambda x: x.reshape(x.shape[0], x.shape[2], -1)),
        heads_case(),
    ),
    ("the projections of key and value are exchanged", layer(lambda p, a: ([p[0], p[2], p[1], p[3]], a)), heads_case()),
    (
        "keys and values are projected from the query's input",
        layer(lambda p, a: (p, [a[0]] * 3)),
        heads_case(Q=4),
    ),
    ("only the first 8 columns of a projection's bias are added (query)", layer(biases_past(8)), heads_case()),
    (
        "the scale is that of the model width H * D",
        layer(attends=lambda q, k, v: attend(q, k, v, scale=(q.shape[1] * q.shape[3]) ** -0.5)),
        heads_case(),
    ),
    (
        "the default scale is taken from a width of 4, not 3",
        layer(attends=lambda q, k, v: attend(q, k, v, scale=0.5)),
        heads_case(separate=True),
    ),
    ("heads get each other's outputs, in reverse", layer(attends=in_order([3, 2, 1, 0])), heads_case()),
    ("heads get each other's outputs, in another order", layer(attends=in_order([1, 3, 0, 2])), heads_case()),
    (
        "heads past the first 3 are 0",
        layer(attends=lambda q, k, v: attend(q, k, v) * np.float32([1, 1, 1, 0])[:, None, None]),
        heads_case(),
    ),
    (
        "query head h reads key head h % G",
        layer(attends=lambda q, k, v: attend(q, k[:, [0, 1, 0, 1]], v[:, [0, 1, 0, 1]])),
        heads_case(),
    ),
    ("the last key is left out", layer(attends=lambda q, k, v: attend(q, k[:, :, :-1], v[:, :, :-1])), heads_case()),
]


@pytest.mark.parametrize(("name", "function", "asked"), LAYERS, ids=[name for name, _, _ in LAYERS])
def test_planted_mistakes_of_layers_are_named_first(name: str, function: Function, asked: Case) -> None:
    assert told(function, asked)[0] == name


def test_what_is_not_known_gets_no_name_of_a_layer() -> None:
    """A softmax over twice the scores of every second key; and a layer that is right has nothing to be named."""

    def odd(q: Any, k: Any, v: Any) -> Any:
        return attend(q, k * np.float32([1, 2, 1, 2])[:, None], v)

    assert told(layer(attends=odd), heads_case()) == ()
    with pytest.raises(AssertionError):
        told(layer(), heads_case())


def test_fewer_projections_on_the_smallest_case_are_the_same_mistake() -> None:
    """The smallest case has one bias left, the one before it three, which the name then lists."""
    small = heads_case()
    names = {"query.bias", "key.bias", "output.bias"}
    small = replace(small, inputs={name: array for name, array in small.inputs.items() if name not in names})
    runner = Runner(Target(layer(unbiased(0, 1, 2)), small.operation).make())
    found = worst(runner(AGREEMENT, small, (oracle(small), bound(small))))
    violation = Violation("MHA-1", "a subject", found, "a probe", AGREEMENT, small, heads_case())
    assert diagnosis(violation, runner) == ("biases of projections are ignored (query, key, value)",)


def biases_up_to(columns: int) -> Function:
    def change(parts: Any, arrays: Any) -> Any:
        return [Linear(p.weight) if p.weight.shape[1] > columns else p for p in parts[:3]] + parts[3:], arrays

    return layer(change)


def unscaled(where: Callable[[int, int], bool]) -> Function:
    """Without a scale for some numbers of query heads and of key heads."""

    def attends(query: Any, key: Any, value: Any) -> Any:
        return attend(query, key, value, scale=1.0 if where(query.shape[1], key.shape[1]) else None)

    return layer(attends=attends)


SIZES: list[tuple[Function, dict[str, int], str]] = [
    (
        biases_up_to(512),
        {"H": 24, "G": 24, "V": 24, "D": 1},
        "first wrong at 513 columns of the value's projection (512 are right)",
    ),
    (
        biases_up_to(512),
        {"H": 48, "G": 12, "D": 12, "V": 1},
        "first wrong at 513 columns of the query's projection (512 are right)",
    ),
    (unscaled(lambda H, G: H > 8), {"H": 20, "G": 2}, "first wrong at 9 heads (8 are right)"),
    (
        unscaled(lambda H, G: H > 8 and H & (H - 1) > 0),
        {"H": 20, "G": 2},
        "wrong where the number of heads, past 8, is no power of two (9, ",
    ),
    (
        unscaled(lambda H, G: H // G > 4 and G > 1),
        {"H": 20, "G": 2},
        "first wrong at 5 query heads to a key head (4 are",
    ),
]


@pytest.mark.parametrize("separate", [False, True])
@pytest.mark.parametrize(("function", "sizes", "sentence"), SIZES, ids=[sentence for _, _, sentence in SIZES])
@pytest.mark.slow_where("-True")
def test_a_product_of_sizes_is_told_as_what_it_is(
    function: Function, sizes: dict[str, int], sentence: str, separate: bool
) -> None:
    case = heads_case(separate=separate, **{"B": 1, "Q": 1, "K": 2, "E": 2, "output": 1} | sizes)
    found, runner = smallest(function, case, supports=["no-gradients"])
    assert sentence in describe_thresholds(thresholds_of(found, runner, 60))


def test_gradients_of_projections_from_some_rows_have_names() -> None:
    """Of the value's projection, where the definition gives them by parts of the batch, and of the last one."""
    asked = heads_case(B=3, separate=True)
    asked = replace(asked, cotangents={"output": np.random.default_rng(2).normal(size=(3, 3, 5)).astype("float32")})

    def of(batch: slice, name: str) -> Any:
        inputs = {n: a[batch] if n in ("query", "key", "value") else a for n, a in asked.inputs.items()}
        part = replace(asked, inputs=inputs, cotangents={"output": asked.cotangents["output"][batch]})
        return oracle(part)[f"gradient of {name}"].high

    for name in ("value[1].bias", "query[3].weight", "output.bias", "output.weight"):
        found = changed_gradients(asked, **{name: lambda g, name=name: of(slice(0, 1), name)})
        words = f"gradient of {name} comes from the first batch element only"
        assert next(known(found, f"gradient of {name}", np.inf)) == words
        missing = changed_gradients(asked, **{name: lambda g: 0 * g})
        assert f"gradient of {name} is missing: it is 0" in known(missing, f"gradient of {name}", np.inf)


def test_factors_that_have_a_reason_in_common_are_one_mistake() -> None:
    of, other = ("gradient of query is {} times what it must be ({})".format(*told) for told in (
        ("2", "the scale is left out, or counted twice"), ("1.7", "the scale is left out"),
    ))  # fmt: skip
    assert explaining((of,), (other,)) == ("gradient of query is 2 times what it must be (the scale is left out)",)
    assert explaining((of,), (other.replace("left out", "applied twice"),)) == ()
    assert explaining((of,), (of,)) == (of,)


# --- merging ----------------------------------------------------------------------------------------------------------


def parts_case(count: int = 4, hidden: tuple[int, ...] = (), graded: bool = False) -> Case:
    """hidden: parts that see nothing in row 0."""
    generator = np.random.default_rng(1)
    inputs = {f"outputs[{i}]": generator.normal(size=(1, 2, 3, 4)) for i in range(count)}
    inputs |= {f"logsumexps[{i}]": generator.normal(size=(1, 2, 3)) + i for i in range(count)}
    for i in hidden:
        inputs[f"logsumexps[{i}]"][:, :, 0] = -np.inf
    bars = {"output": generator.normal(size=(1, 2, 3, 4)), "logsumexp": generator.normal(size=(1, 2, 3))}
    inputs, bars = ({n: a.astype("float32") for n, a in arrays.items()} for arrays in (inputs, bars))
    return Case("merge_attention", "float32", inputs, {}, bars if graded else {})


def by_weights(weights: Function) -> Function:
    """Merging by other weights, of the exponentials [P, ...]."""

    def merge(outputs: Any, logsumexps: Any) -> Any:
        logs = np.stack(logsumexps).astype(float)
        shares = weights(np.exp(logs - logs.max(0)))[..., None]
        output = (shares * np.stack(outputs)).sum(0) / shares.sum(0)
        return output.astype(outputs[0].dtype), reference_numpy.merge_attention(outputs, logsumexps)[1]

    return merge


def in_turn(late: int, of_output: bool) -> Function:
    """An online merge, that forgets one rescaling from the part `late` on."""

    def merge(outputs: Any, logsumexps: Any) -> Any:
        highest, total, output = logsumexps[0].astype(float), 1.0, outputs[0].astype(float)
        for number, (part, log) in enumerate(zip(outputs[1:], logsumexps[1:], strict=True), 2):
            larger = np.maximum(highest, log)
            old, new = np.exp(highest - larger), np.exp(log - larger)
            total = total * (1 if number >= late and not of_output else old) + new
            output = output * (1 if number >= late and of_output else old[..., None]) + new[..., None] * part
            highest = larger
        merged = (output / np.broadcast_to(total, highest.shape)[..., None]).astype(outputs[0].dtype)
        return merged, (highest + np.log(total)).astype(logsumexps[0].dtype)

    return merge


def wrongly(change: Function) -> Function:
    """The right merge of other parts."""
    return lambda outputs, logsumexps: reference_numpy.merge_attention(*change(outputs, logsumexps))


def naive(outputs: Any, logsumexps: Any) -> Any:
    """The running maximum begins with the first part's."""
    highest = logsumexps[0].astype("float32")
    for log in logsumexps[1:]:
        highest = np.maximum(highest, log)
    output, log = reference_numpy.merge_attention(outputs, logsumexps)
    rows = np.isneginf(logsumexps[0])
    return np.where(rows[..., None], np.float32(np.nan), output), np.where(rows, np.float32(np.nan), log)


def nan_of_nothing(*which: int) -> Function:
    """NaN in these results, where every part is -inf."""

    def merge(outputs: Any, logsumexps: Any) -> Any:
        results, rows = reference_numpy.merge_attention(outputs, logsumexps), np.isneginf(np.max(logsumexps, axis=0))
        nan = np.float32(np.nan)
        return tuple(
            np.where(rows[..., None] if array.ndim > rows.ndim else rows, nan, array) if i in which else array
            for i, array in enumerate(results)
        )

    return merge


def unsubtracted(outputs: Any, logsumexps: Any) -> Any:
    """Weights are exponentials of the log-sum-exps themselves."""
    with np.errstate(all="ignore"):
        weights = np.exp(np.stack(logsumexps))[..., None]
        output = (weights * np.stack(outputs)).sum(0) / weights.sum(0)
    return output.astype(outputs[0].dtype), reference_numpy.merge_attention(outputs, logsumexps)[1]


def far_up(by: Any, dtype: str) -> Case:
    """by: added to the log-sum-exps [B, H, Q]."""
    asked = parts_case()
    inputs = {name: a + by if name.startswith("logsumexps") else a for name, a in asked.inputs.items()}
    return replace(asked, dtype=dtype, inputs={name: array.astype(dtype) for name, array in inputs.items()})


MERGES: list[tuple[str, Function, Case]] = [
    ("the running sum is not rescaled when the maximum grows", in_turn(2, False), parts_case()),
    ("the running output is not rescaled when the maximum grows", in_turn(2, True), parts_case()),
    ("the running sum is not rescaled when the maximum grows (from part 5 on)", in_turn(5, False), parts_case(12)),
    ("parts are merged with equal weights", by_weights(np.ones_like), parts_case()),
    ("parts get each other's weights: in reverse", by_weights(lambda w: w[::-1]), parts_case(2)),
    (
        "parts are merged by log-sum-exps in base 2 as if they were natural",
        by_weights(lambda w: w ** (1 / np.log(2))),
        parts_case(),
    ),
    ("the last part is left out", wrongly(lambda o, logs: (o[:-1], logs[:-1])), parts_case()),
    ("parts past the first 8 are left out", wrongly(lambda o, logs: (o[:8], logs[:8])), parts_case(12)),
    (
        "a log-sum-exp of -inf is taken for 0",
        wrongly(lambda o, logs: (o, [np.where(np.isinf(a), np.float32(0), a) for a in logs])),
        parts_case(hidden=(1,)),
    ),
    ("rows in which the first part is -inf are NaN", naive, parts_case(hidden=(0,))),
    (
        "rows in which every part is -inf hold other numbers than 0",
        wrongly(lambda o, logs: (o, [np.maximum(log, np.float32(-1e30)) for log in logs])),
        parts_case(hidden=(0, 1, 2, 3)),
    ),
    ("the maximum is not subtracted: exponentials overflow", unsubtracted, far_up([0, 0, 100], "float32")),
    ("the maximum is not subtracted: exponentials overflow", unsubtracted, far_up([0, 100, 800], "float64")),
    (
        "the log-sum-exp is the maximum alone",
        lambda o, logs: (reference_numpy.merge_attention(o, logs)[0], np.max(logs, axis=0)),
        parts_case(),
    ),
]


@pytest.mark.parametrize(("name", "function", "asked"), MERGES, ids=[name for name, _, _ in MERGES])
def test_planted_mistakes_of_merging_are_named_first(name: str, function: Function, asked: Case) -> None:
    assert told(function, asked)[0] == name


def test_an_output_that_is_right_has_no_name() -> None:
    """The larger case's output is 0; that of the smaller one, of which no part sees anything, must be."""

    def zeros(outputs: Any, logsumexps: Any) -> Any:
        return np.zeros_like(outputs[0]), np.zeros_like(logsumexps[0])

    small, larger = parts_case(1, hidden=(0,)), parts_case(3)
    small = replace(small, inputs={name: array[:, :, :1] for name, array in small.inputs.items()})
    runner = Runner(Target(zeros, small.operation, "numpy").make())
    found = worst(runner(AGREEMENT, small, (oracle(small), bound(small))))
    violation = Violation("ATT-14", "a subject", found, "a probe", AGREEMENT, small, larger)
    assert diagnosis(violation, runner) == ("wrong in: logsumexp only; output conforms",)
    assert told(zeros, larger)[0] == "output is 0 everywhere"


@pytest.mark.parametrize(
    ("which", "line"),
    [
        ((0,), "wrong in: output only; logsumexp conforms"),
        ((1,), "wrong in: logsumexp only; output conforms"),
        ((0, 1), "wrong in: output and logsumexp"),
    ],
)
def test_which_results_of_a_merge_are_wrong(which: tuple[int, ...], line: str) -> None:
    found = told(nan_of_nothing(*which), parts_case(hidden=(0, 1, 2, 3)))
    assert (found[0], found[-1]) == ("rows in which every part is -inf are NaN", line)
    assert "hold other numbers" not in str(found)
    assert "backward" not in str(found)


def test_other_weights_of_parts_have_no_name() -> None:
    assert [line for line in told(by_weights(np.sqrt), parts_case()) if not line.startswith("wrong in")] == []


def test_gradients_of_merging_have_names() -> None:
    asked = parts_case(graded=True)
    other = replace(asked, cotangents=asked.cotangents | {"logsumexp": np.zeros_like(asked.cotangents["logsumexp"])})
    got = {name: exact.high for name, exact in oracle(other).items()}
    found = failing(asked, {name: array.astype("float32") for name, array in got.items()})
    name = "the log-sum-exp's part is missing in the gradients of log-sum-exps"
    assert next(known(found, found.wrong[0], np.inf)) == name


# --- masks ------------------------------------------------------------------------------------------------------------


def masked(mask: Any, **sizes: int) -> Case:
    return replace(drawn(**sizes), options={"mask": mask})


STRUCTURED = conformance.declare(supports=["structured"])


def read_as(change: Function) -> Function:
    """Attention with another mask."""
    return STRUCTURED(lambda q, k, v, mask=None: attend(q, k, v, mask=None if mask is None else change(mask, q, k)))


def by_tiles(n: int) -> Function:
    def change(mask: Any, q: Any, k: Any) -> Any:
        Q, K = q.shape[2], k.shape[2]
        dense = np.arange(K) <= np.arange(Q)[:, None] + (0 if mask.offset is None else mask.offset)
        seen = np.logical_or.reduceat(np.logical_or.reduceat(dense, np.arange(0, K, n), 1), np.arange(0, Q, n), 0)
        return seen.repeat(n, 0)[:Q].repeat(n, 1)[:, :K]

    return change


def later(mask: Any, q: Any, k: Any) -> Any:
    rows = np.arange(q.shape[2])[:, None]
    return np.arange(k.shape[2]) <= rows + (rows >= 8) + (mask.offset or 0)


def tiles_up_to_the_last(n: int) -> Function:
    """As many tiles of n keys as the last key of a block of n queries is away, rounded up."""

    def change(mask: Any, q: Any, k: Any) -> Any:
        rows, keys = np.arange(q.shape[2])[:, None] + mask.offset, np.arange(k.shape[2])
        last = (rows - mask.offset) // n * n + n - 1 + mask.offset + mask.right
        return (keys <= rows + mask.right) & (keys < -(-last // n) * n)

    return change


def ids_in(form: Any) -> Function:
    return lambda mask, q, k: Segments(*(a.astype(form).astype(int) for a in (mask.query_ids, mask.key_ids)))


def hidden_first(n: int, value: float) -> Function:
    """Rows whose first n keys are hidden become a number."""

    def function(query: Any, key: Any, value_: Any, *, mask: Any = None) -> Any:
        output = attend(query, key, value_, mask=mask)
        seen = np.arange(key.shape[2]) >= np.asarray(mask.offset - mask.left + np.arange(query.shape[2]))[:, None]
        rows = seen.argmax(axis=-1) >= n
        return np.where(rows[:, None], np.float32(value), output)

    return STRUCTURED(function)


PACKED = Segments(np.array([[256, 257, 257]]), np.array([[256, 256, 257, 257, 258]]))
MASKS: list[tuple[str, Function, Case]] = [
    (
        "the causal mask's offset is rounded down to whole blocks (blocks of 16 keys)",
        read_as(lambda m, q, k: Causal(m.offset // 16 * 16)),
        masked(Causal(23), K=26),
    ),
    (
        "the window's offset is ignored",
        read_as(lambda m, q, k: SlidingWindow(m.left, m.right, 0)),
        masked(SlidingWindow(2, 1, 2)),
    ),
    (
        "key lengths are rounded up to whole blocks (blocks of 8 keys)",
        read_as(lambda m, q, k: KeyLengths(-(-m.lengths // 8) * 8)),
        masked(KeyLengths(np.array([3, 13])), B=2, K=16),
    ),
    (
        "the causal mask's offset has the other sign",
        read_as(lambda m, q, k: Causal(-m.offset)),
        masked(Causal(2), Q=4, K=6),
    ),
    (
        "the window is as wide on the right as on the left",
        read_as(lambda m, q, k: SlidingWindow(m.left, m.left, m.offset)),
        masked(SlidingWindow(2, 0, 2), K=9),
    ),
    ("segment ids are compared in bfloat16", read_as(ids_in(ml_dtypes.bfloat16)), masked(PACKED)),
    (
        "segment ids are compared modulo 2^8",
        read_as(lambda m, q, k: Segments(m.query_ids % 256, m.key_ids % 256)),
        masked(Segments(np.array([[1, 257, 257]]), np.array([[1, 1, 257, 257, 2]]))),
    ),
    (
        "the mask is that of whole tiles: one is seen where one of its pairs is (blocks of 8 rows)",
        read_as(by_tiles(8)),
        masked(Causal(), Q=20, K=20),
    ),
    (
        "queries past the first 8: the causal mask is off by one: a query sees the key after its own",
        read_as(later),
        masked(Causal(), Q=20, K=20),
    ),
    (
        "a tile of keys is not seen that begins at the last key of a block of queries (blocks of 16 keys)",
        read_as(tiles_up_to_the_last(16)),
        masked(SlidingWindow(None, 2, 15), Q=20, K=40),
    ),
    ("rows whose first 32 keys are hidden are NaN", hidden_first(32, np.nan), masked(SlidingWindow(3, None, 33), K=40)),
    ("rows whose first 32 keys are hidden are 0", hidden_first(32, 0.0), masked(SlidingWindow(3, None, 33), K=40)),
]


@pytest.mark.parametrize(("name", "function", "asked"), MASKS, ids=[name for name, _, _ in MASKS])
def test_planted_mistakes_of_masks_are_named_first(name: str, function: Function, asked: Case) -> None:
    assert told(function, asked)[0] == name


def overflowing(maximum: Function) -> Function:
    """A softmax in float32 that subtracts another number than the maximum."""

    def function(query: Any, key: Any, value: Any, *, scale: float | None = None) -> Any:
        scale = query.shape[3] ** -0.5 if scale is None else scale
        scores = (query @ key.swapaxes(2, 3) * np.float32(scale)).astype("float32")
        with np.errstate(all="ignore"):
            exponentials = np.exp(scores - maximum(scores, scale))
            return (exponentials / exponentials.sum(-1, keepdims=True)) @ value

    return function


def test_exponentials_that_overflow_have_names() -> None:
    asked = replace(drawn(), options={"scale": -100.0})
    before = overflowing(lambda s, scale: (s.max if scale > 0 else s.min)(axis=-1, keepdims=True))
    assert told(before, asked)[0] == "the maximum is taken before a scale below 0: exponentials overflow"
    never = overflowing(lambda s, scale: np.float32(0))
    name = "the maximum is not subtracted: exponentials overflow or are all 0"
    assert told(never, replace(asked, options={"scale": 100.0}))[0] == name
    inputs = asked.inputs | {"query": np.full_like(asked.inputs["query"], 12), "key": -abs(asked.inputs["key"]) - 12}
    asked = replace(asked, options={"scale": 1.0}, inputs=inputs)
    too_high = "the maximum begins too high, as at 0: all exponentials of scores far below are 0"
    assert told(never, asked) == (name,), "every exponential is 0, which both explain; far above 0 this one alone"
    assert told(overflowing(lambda s, scale: np.maximum(s.max(axis=-1, keepdims=True), 0)), asked) == (too_high,)
    from_0 = overflowing(lambda s, scale: np.maximum(s.max(axis=-1, keepdims=True), 0))
    inputs = inputs | {"query": inputs["query"] * np.array([1, 0.5, -1], np.float32)[:, None]}
    assert told(from_0, replace(asked, inputs=inputs)) == (too_high,)
    assert told(never, replace(asked, inputs=inputs)) == (name,)
    upwards = inputs | {"query": asked.inputs["query"] * np.array([-0.2, -0.3, -1], np.float32)[:, None]}
    some = overflowing(lambda s, scale: np.where(s > 400, np.nan, s.max(axis=-1, keepdims=True)))
    assert name not in told(some, replace(asked, inputs=upwards)), "rows whose exponentials overflow are right"
    assert name not in told(lambda query, key, value: np.zeros_like(query), drawn()), "of scores near 0"


# --- gradients of sinks -----------------------------------------------------------------------------------------------


def test_gradients_of_sinks_from_some_queries_have_names() -> None:
    asked = drawn(B=2, Q=21, H=4, graded=True, sinks=(4,))
    terms = failing(asked, {}).parts.sinks
    assert terms is not None
    for words, rows in (("last", slice(16, 21)), ("first", slice(0, 8))):
        found = changed_gradients(asked, sinks=lambda g, rows=rows: terms[:, :, rows].sum((0, 2, 3)))
        name = f"gradient of sinks comes from the {words} block of queries only (blocks of 8 queries)"
        assert next(known(found, "gradient of sinks", np.inf)) == name
    found = changed_gradients(asked, sinks=lambda g: terms[0].sum((1, 2)))
    assert (
        next(known(found, "gradient of sinks", np.inf)) == "gradient of sinks comes from the first batch element only"
    )
    found = changed_gradients(asked, sinks=lambda g: np.where(np.arange(4) < 2, g, 0))
    assert next(known(found, "gradient of sinks", np.inf)) == "heads past the first 2 are 0 in the gradient of sinks"
    found = changed_gradients(asked, sinks=lambda g: -g)
    name = "gradient of sinks is -1 times what it must be (the sign is lost)"
    assert next(known(found, "gradient of sinks", np.inf)) == name


def test_each_wrong_share_of_a_sink_has_its_own_name() -> None:
    asked = drawn(B=2, H=4, graded=True, sinks=(4,))
    for words, array in sink_sums(failing(asked, {})):
        found = changed_gradients(asked, sinks=lambda g, array=array: array)
        names = list(known(found, "gradient of sinks", np.inf))
        assert names[0] == f"gradient of sinks: {words}", names
    odd = changed_gradients(asked, sinks=lambda g: g + np.sin(np.arange(4)))
    assert list(known(odd, "gradient of sinks", np.inf)) == []


# --- sums over a group's heads ----------------------------------------------------------------------------------------


def test_sums_over_some_heads_of_a_group_have_names() -> None:
    asked = drawn(H=12, G=2, graded=True)
    terms = failing(asked, {}).parts.key.reshape(1, 2, 6, 5, 4)
    counted = {
        "comes from the first 4 query heads of each group only": [1, 1, 1, 1, 0, 0],
        "comes from the last 2 query heads of each group only": [0, 0, 0, 0, 1, 1],
        "counts query heads of each group more or less often than once (the last one twice)": [1, 1, 1, 1, 1, 2],
        "counts query heads of each group more or less often than once": [1, 2, 1, 0, 1, 1],
    }
    for words, times in counted.items():
        found = changed_gradients(asked, key=lambda g, times=times: np.einsum("bgskd,s->bgkd", terms, times))
        assert next(known(found, "gradient of key", np.inf)) == f"gradient of key {words}"


@pytest.mark.parametrize("operation", ["attention", "attention_weights", "attention_logsumexp"])
def test_gradients_from_some_queries_have_names(operation: str) -> None:
    inputs = {name: array for name, array in drawn().inputs.items() if name != "value" or operation == "attention"}
    bar = np.random.default_rng(2).normal(size=oracle(Case(operation, "float32", inputs))["output"].high.shape)
    asked = Case(operation, "float32", inputs, {}, {"output": bar.astype("float32")})
    first = replace(asked, cotangents={"output": asked.cotangents["output"].copy()})
    first.cotangents["output"][:, :, 1:] = 0
    name = "gradient of key"
    found = changed_gradients(asked, key=lambda gradient: oracle(first)[name].high)
    assert f"{name} comes from the first query only" in list(known(found, name, np.inf))


def test_only_0_explains_a_gradient_of_zeros() -> None:
    found = changed_gradients(drawn(graded=True), key=lambda gradient: 0 * gradient)
    name = "gradient of key"
    assert is_answer(found, name, 0 * found.right(name))
    assert not is_answer(found, name, 1e-9 * found.right(name))


# --- memory -----------------------------------------------------------------------------------------------------------


def test_arrays_of_stride_0_stay_so_at_other_sizes() -> None:
    asked = drawn(graded=True)
    shared = replace(asked, cotangents={"output": np.ones((1, 2, 3, 4), "float32")}, memory={"cotangent": "one number"})
    larger = taken(shared, {"V": Part(0, 9)}, np.random.default_rng(0))
    assert larger is not None
    assert np.ptp(larger.cotangents["output"]) == 0
    free = taken(replace(shared, memory={}), {"V": Part(0, 9)}, np.random.default_rng(0))
    assert free is not None
    assert np.ptp(free.cotangents["output"]) > 0
