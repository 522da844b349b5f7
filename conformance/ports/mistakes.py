"""Known mistakes of ports: what porters get wrong, as the definition with some steps taken otherwise.

A mistake has a scope: the whole model, one stack, one block or one sublayer. It predicts what a port with it returns,
so that it can be told by its results alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from conformance.ports.computation import Computation, Step
from reference_numpy.multi_head_attention import join_heads
from specification.configuration import CHOICES, AttentionLayer, Configuration
from specification.masks import And, Causal, Dense, KeyPadding, Mask
from specification.parameters import (
    Decoder,
    Encoder,
    FeedForward,
    LanguageModel,
    Linear,
    MultiHeadAttention,
    Norm,
    Transformer,
)

EPSILONS = (1e-5, 1e-6, 1e-12, 1e-8, 1e-3)
"""Those that libraries have as defaults, and so forget to read."""
BASES = (10000.0, 500000.0, 1000000.0, 100000.0, 160000.0)
"""Of rotary embeddings: Llama 1 to 3, Qwen, and ModernBERT's two kinds of layers are between them."""


@dataclass(frozen=True)
class ModelMistake:
    """One mistake in one scope.

    Attributes:
        id: `topic.words-with-hyphens`; never changes.
        rule: the rule of the specification that it breaks.
        says: the mistake in one sentence, without its scope.
        change: makes the computation of a port with the mistake.
        scope: the beginning of the names of the steps where it is made; empty for everywhere. Of several, all but the
            first block.
    """

    id: str
    rule: str
    says: str
    change: Callable[[Computation], Computation]
    scope: tuple[str, ...] = ()

    def apply(self, computation: Computation) -> Computation:
        return self.change(computation)


StepChange = Callable[[Step], Step]


@dataclass(frozen=True)
class StepMistake:
    """A mistake of single steps, which any scope may have."""

    id: str
    rule: str
    says: str
    change: StepChange
    kinds: tuple[str, ...]

    def within(self, scope: tuple[str, ...]) -> ModelMistake:
        """Return the mistake where the names of steps begin so."""
        kinds, change = self.kinds, self.change

        def rewrite(step: Step) -> Step:
            if step.kind not in kinds or (scope and not step.name.startswith(scope)):
                return step
            return change(step)

        return ModelMistake(self.id, self.rule, self.says, lambda c: c.rewrite(rewrite), scope)


# --- scopes -----------------------------------------------------------------------------------------------------------


def list_blocks(computation: Computation) -> list[str]:
    """Return the beginnings of the names of each block's steps, in order."""
    stacks = list_stacks(computation)
    return [f"{name}blocks.{i}." for name, stack in stacks.items() for i in range(len(stack.blocks))]


def list_stacks(computation: Computation) -> dict[str, Encoder | Decoder]:
    """By the beginning of the names of its steps, each stack of blocks."""
    p: Any = computation.parameters
    if isinstance(p, Encoder | Decoder):
        return {"": p}
    named = p._asdict().items() if hasattr(p, "_asdict") else ()
    return {f"{name}.": part for name, part in named if isinstance(part, Encoder | Decoder)}


def list_scopes(computation: Computation) -> list[tuple[str, ...]]:
    """Return scopes, the largest first: everywhere, one stack, all blocks but the first, one block, one sublayer."""
    stacks, blocks = list_stacks(computation), list_blocks(computation)
    found: list[tuple[str, ...]] = [()]
    found += [(name,) for name in stacks] if len(stacks) > 1 else []
    found += [tuple(blocks[1:]), tuple(blocks[:-1])] if len(blocks) > 2 else []
    found += [(block,) for block in blocks]
    found += [(f"{block}{part}",) for block in blocks for part in ("attention", "self_attention", "cross_attention",
                                                                    "feed_forward")]  # fmt: skip
    found += [(f"{name}{part}",) for name in stacks for part in ("embedding", "norm")]
    return found


# --- norms ------------------------------------------------------------------------------------------------------------


def change_norm(change: Callable[[Configuration], Configuration]) -> StepChange:
    return lambda step: step.argument(2, change(step.arguments[2]))


def rename_norm(kind: str) -> StepChange:
    """Normalise by another norm; one that has no bias leaves it out."""

    def change(step: Step) -> Step:
        norm, x, configuration = step.arguments
        plain = Norm(norm.weight) if kind.startswith("rms") else norm
        return step._replace(arguments=(plain, x, replace(configuration, norm=kind)))

    return change


def norm_outside(step: Step) -> Step:
    """eps is added to the root."""
    norm, x, configuration = step.arguments
    deviation = x - x.mean(-1, keepdims=True) if configuration.norm == "layer_norm" else x
    weight = norm.weight + (1 if configuration.norm.endswith("plus_one") else 0)
    bias = 0 if norm.bias is None else norm.bias
    root = np.sqrt(np.mean(deviation**2, axis=-1, keepdims=True)) + configuration.norm_eps
    return step._replace(function=lambda *_: deviation / root * weight + bias, keywords={})


def norm_unbiased(step: Step) -> Step:
    """The variance is divided by n - 1."""
    norm, x, configuration = step.arguments
    if configuration.norm != "layer_norm":
        return step
    deviation, n = x - x.mean(-1, keepdims=True), x.shape[-1]
    bias = 0 if norm.bias is None else norm.bias
    root = np.sqrt(np.sum(deviation**2, axis=-1, keepdims=True) / (n - 1) + configuration.norm_eps)
    return step._replace(function=lambda *_: deviation / root * norm.weight + bias)


def norm_affine(step: Step, **fields: Any) -> Step:
    norm, _, configuration = step.arguments
    if "weight" in fields:
        one = 0.0 if configuration.norm.endswith("plus_one") else 1.0
        fields["weight"] = np.full_like(norm.weight, one)
    return step.argument(0, norm._replace(**fields))


def list_norm_mistakes() -> Iterator[StepMistake]:
    kinds = ("normalize",)
    for eps in EPSILONS:
        change = change_norm(lambda c, eps=eps: replace(c, norm_eps=eps))
        yield StepMistake(f"norm.eps-{eps:g}", "NORM-1", f"the norm's eps is {eps:g}", change, kinds)
    names = {"layer_norm": "layer norm", "rms_norm": "RMS norm", "rms_norm_plus_one": "RMS norm with weight 1 + w"}
    for kind in CHOICES["norm"]:
        told = names.get(kind, "standard-deviation norm, with n - 1 and eps outside the root")
        rule = "NORM-8" if "plus_one" in kind else "NORM-7"
        yield StepMistake(f"norm.{kind.replace('_', '-')}", rule, f"the norm is {told}", rename_norm(kind), kinds)
    yield StepMistake("norm.weight-itself", "NORM-8", "the norm's weight is w in place of 1 + w",
                      lambda s: change_norm(lambda c: replace(c, norm=c.norm.removesuffix("_plus_one")))(s), kinds)  # fmt: skip
    yield StepMistake("norm.weight-plus-one", "NORM-8", "1 is added to the norm's weight",
                      lambda s: s.argument(0, s.arguments[0]._replace(weight=s.arguments[0].weight + 1)), kinds)  # fmt: skip
    yield StepMistake("norm.eps-outside", "NORM-1", "the norm's eps is added to the root", norm_outside, kinds)
    yield StepMistake("norm.unbiased", "NORM-1", "the norm's variance is divided by n - 1", norm_unbiased, kinds)
    yield StepMistake("norm.no-weight", "NORM-1", "the norm's weight is left out",
                      lambda s: norm_affine(s, weight=None), kinds)  # fmt: skip
    yield StepMistake("norm.no-bias", "NORM-1", "the norm's bias is left out",
                      lambda s: norm_affine(s, bias=None), kinds)  # fmt: skip
    yield StepMistake("norm.left-out", "BLK-1", "the norm is left out", lambda s: s._replace(
        function=lambda norm, x, configuration: x), kinds)  # fmt: skip
    yield StepMistake("norm.twice", "BLK-1", "the norm is applied twice", lambda s: s._replace(
        function=lambda norm, x, c, f=s.function: f(norm, f(norm, x, c), c)), kinds)  # fmt: skip


# --- attention --------------------------------------------------------------------------------------------------------

ATTEND = ("attend",)
PARAMETERS, QUERY, MEMORY, MASK, CONFIGURATION, LAYER, BIAS, ROTATION = 0, 1, 2, 3, 5, 6, 7, 8
"""Positions of the arguments of `attend`."""


def complete(step: Step) -> Step:
    """Return a step of attention with all arguments by position."""
    given = list(step.arguments)
    defaults = (None, None, None, None, None, None, AttentionLayer(), None, None)
    return step._replace(arguments=(*given, *defaults[len(given) :]))


def change_attention(change: Callable[[Configuration], Configuration]) -> StepChange:
    return lambda step: step.argument(CONFIGURATION, change(step.arguments[CONFIGURATION]))


def change_projections(change: Callable[[MultiHeadAttention, int], MultiHeadAttention]) -> StepChange:
    """Change the parameters of attention, given them with each projection in one, and the number of heads."""

    def changed(step: Step) -> Step:
        p = step.arguments[PARAMETERS]
        joined = p._replace(query=join_heads(p.query), key=join_heads(p.key), value=join_heads(p.value))
        try:
            return step.argument(PARAMETERS, change(joined, step.arguments[CONFIGURATION].num_heads))
        except ValueError:  # widths that do not allow it
            return step

    return changed


def change_mask(change: Callable[[Any, Step], Any]) -> StepChange:
    return lambda step: step.argument(MASK, change(step.arguments[MASK], step))


def drop_masks(mask: Any, kinds: type | tuple[type, ...]) -> Any:
    """Return the mask without parts of these kinds."""
    if isinstance(mask, And):
        left, right = drop_masks(mask.left, kinds), drop_masks(mask.right, kinds)
        return right if left is None else left if right is None else And(left, right)
    return None if isinstance(mask, kinds) else mask


def map_masks(mask: Any, kind: type, change: Callable[[Any], Any]) -> Any:
    if isinstance(mask, And):
        return And(map_masks(mask.left, kind, change), map_masks(mask.right, kind, change))
    return change(mask) if isinstance(mask, kind) else mask


def add_causal(mask: Any, step: Step) -> Any:
    return Causal() if mask is None else mask & Causal() if isinstance(mask, Mask) else Dense(mask) & Causal()


def change_layer(change: Callable[[AttentionLayer], AttentionLayer]) -> StepChange:
    """Change window or rotation of a step of attention; sine and cosine are made anew."""

    def changed(step: Step) -> Step:
        step = complete(step)
        return step.argument(LAYER, change(step.arguments[LAYER])).argument(ROTATION, None)

    return changed


def change_rotary(**fields: Any) -> StepChange:
    def change(layer: AttentionLayer) -> AttentionLayer:
        return layer if layer.rotary is None else replace(layer, rotary=replace(layer.rotary, **fields))

    return change_layer(change)


def set_width(share: float) -> StepChange:
    def changed(step: Step) -> Step:
        step = complete(step)
        layer, p = step.arguments[LAYER], step.arguments[PARAMETERS]
        if layer.rotary is None:
            return step
        width = join_heads(p.query).weight.shape[1] // step.arguments[CONFIGURATION].num_heads
        rotated = int(width * share) // 2 * 2 or None
        new = replace(layer, rotary=replace(layer.rotary, width=None if share == 1 else rotated))
        return step.argument(LAYER, new).argument(ROTATION, None)

    return changed


def widen_window(left: int, right: int) -> StepChange:
    def change(layer: AttentionLayer) -> AttentionLayer:
        if layer.window is None:
            return layer
        window = (max(layer.window[0] + left, 0), max(layer.window[1] + right, 0))
        return replace(layer, window=window)

    return change_layer(change)


def permute_columns(linear: Linear, order: np.ndarray) -> Linear:
    return Linear(linear.weight[:, order], None if linear.bias is None else linear.bias[order])


def interleave(width: int, heads: int) -> np.ndarray:
    """Columns as [D, H] that stand as [H, D]."""
    return np.arange(width).reshape(heads, -1).T.ravel()


def swap_pairs(width: int, heads: int) -> np.ndarray:
    """Columns of each head as halves that stand as interleaved pairs."""
    within = np.arange(width // heads).reshape(2, -1).T.ravel()
    return (np.arange(heads)[:, None] * (width // heads) + within).ravel()


def interleave_heads(p: MultiHeadAttention, heads: int) -> MultiHeadAttention:
    """All heads' columns are read as [D, H]."""
    width, ratio = p.query.weight.shape[1] // heads, heads
    G = p.key.weight.shape[1] // width
    query = permute_columns(p.query, interleave(p.query.weight.shape[1], ratio))
    key, value = (permute_columns(one, interleave(one.weight.shape[1], G)) for one in (p.key, p.value))
    return p._replace(query=query, key=key, value=value)


def fuse_otherwise(p: MultiHeadAttention, heads: int, inverse: bool) -> MultiHeadAttention:
    """The columns of a fused matrix are taken as [H, 3, D] where they are [3, H, D], or the other way round."""
    parts = [p.query, p.key, p.value]
    if len({part.weight.shape for part in parts}) > 1:
        raise ValueError("no fused matrix has such parts")
    width = p.query.weight.shape[1]
    order = np.arange(3 * width).reshape((heads, 3, -1) if not inverse else (3, heads, -1))
    order = order.transpose(1, 0, 2).ravel()
    weight = np.concatenate([part.weight for part in parts], axis=1)
    bias = None if parts[0].bias is None else np.concatenate([part.bias for part in parts])
    found = [
        Linear(weight[:, order[i * width : (i + 1) * width]],
               None if bias is None else bias[order[i * width : (i + 1) * width]])
        for i in range(3)
    ]  # fmt: skip
    return p._replace(query=found[0], key=found[1], value=found[2])


def tile_heads(p: MultiHeadAttention, heads: int) -> MultiHeadAttention:
    """Query head h reads key head h % G."""
    width = p.query.weight.shape[1] // heads
    G = p.key.weight.shape[1] // width
    columns = np.arange(heads * width).reshape(heads, width)
    head = np.arange(heads).reshape(heads // G, G).T.ravel()  # in the order in which shared heads are repeated
    order = columns[head].ravel()
    rows = np.arange(p.output.weight.shape[0]).reshape(heads, -1)[head].ravel()
    output = p.output._replace(weight=p.output.weight[rows])
    return p._replace(query=permute_columns(p.query, order), output=output)


def transpose(linear: Linear) -> Linear:
    if linear.weight.shape[0] != linear.weight.shape[1]:
        raise ValueError("only a square matrix can be read transposed")
    return linear._replace(weight=linear.weight.T)


def merge_heads_otherwise(p: MultiHeadAttention, heads: int) -> MultiHeadAttention:
    """What the heads give is laid side by side as [D, H]."""
    order = interleave(p.output.weight.shape[0], heads)
    inverse = np.argsort(order)
    return p._replace(output=p.output._replace(weight=p.output.weight[inverse]))


def list_attention_mistakes() -> Iterator[StepMistake]:
    def entry(name: str, rule: str, says: str, change: StepChange) -> StepMistake:
        return StepMistake(f"attention.{name}", rule, says, change, ATTEND)

    def projections(name: str, says: str, change: Any, rule: str = "MHA-1") -> StepMistake:
        return entry(name, rule, says, change_projections(change))

    for name, scale, told in (("none", 1.0, "left out"), ("model-width", "model_width", "1 / sqrt(E)"),
                              ("head-width", "head_width", "1 / sqrt(D)")):  # fmt: skip
        change = change_attention(lambda c, scale=scale: replace(c, scale=scale))
        yield entry(f"scale-{name}", "ATT-1", f"the scale of scores is {told}", change)
    yield entry("scale-squared", "ATT-1", "the scale of scores is 1 / D, applied twice", scale_twice)
    yield entry("no-softcap", "ATT-2", "the softcap of scores is left out",
                change_attention(lambda c: replace(c, softcap=None)))  # fmt: skip
    yield entry("padding-ignored", "MASK-2", "padding is not masked",
                change_mask(lambda mask, _: drop_masks(mask, KeyPadding)))  # fmt: skip
    yield entry("padding-inverted", "MASK-1", "padding is masked the wrong way round", change_mask(
        lambda mask, _: map_masks(mask, KeyPadding, lambda m: KeyPadding(~np.asarray(m.keep)))))  # fmt: skip
    yield entry("not-causal", "MASK-3", "later tokens are visible",
                change_mask(lambda mask, _: drop_masks(mask, Causal)))  # fmt: skip
    yield entry("causal", "MASK-3", "later tokens are masked", change_mask(add_causal))
    for offset, told in ((1, "the next token is visible"), (-1, "a token does not see itself")):
        yield entry(f"causal-{offset}", "MASK-3", told, change_mask(
            lambda mask, _, offset=offset: map_masks(mask, Causal, lambda m: Causal(offset))))  # fmt: skip
    yield entry("no-mask", "MASK-1", "nothing is masked", change_mask(lambda mask, _: None))
    yield entry("no-window", "MASK-4", "the window is ignored", change_layer(lambda l: replace(l, window=None)))
    for left, right, told in ((1, 0, "one key too many"), (-1, 0, "one key too few"), (1, 1, "one key too many at "
                              "either side"), (-1, -1, "one key too few at either side")):  # fmt: skip
        yield entry(f"window{left:+d}{right:+d}", "MASK-4", f"the window has {told}", widen_window(left, right))
    for base in BASES:
        yield entry(f"rotary-base-{base:g}", "POS-3", f"the base of the rotary embedding is {base:g}",
                    change_rotary(base=base))  # fmt: skip
    for pairing, told in (("halves", "the two halves of a head"), ("interleaved", "neighbouring columns")):
        yield entry(f"rotary-{pairing}", "POS-3", f"the rotary embedding turns pairs of {told}",
                    change_rotary(pairing=pairing))  # fmt: skip
    yield entry("rotary-not-scaled", "POS-4", "the scaling of rotary frequencies is ignored",
                change_rotary(scaling=None))  # fmt: skip
    yield entry("no-rotary", "POS-3", "queries and keys are not rotated",
                change_layer(lambda l: replace(l, rotary=None)))  # fmt: skip
    for share in (1, 0.5, 0.25):
        told = "all columns of a head turn" if share == 1 else f"a share of {share} of a head's columns turns"
        yield entry(f"rotary-width-{share}", "POS-3", told, set_width(share))
    yield entry("rotary-backwards", "POS-3", "the rotary embedding turns the other way", turn_back)
    yield projections("query-key-swapped", "queries and keys have changed places",
                      lambda p, H: p._replace(query=p.key, key=p.query))  # fmt: skip
    yield projections("query-value-swapped", "queries and values have changed places",
                      lambda p, H: p._replace(query=p.value, value=p.query))  # fmt: skip
    yield projections("key-value-swapped", "keys and values have changed places",
                      lambda p, H: p._replace(key=p.value, value=p.key))  # fmt: skip
    yield projections("rotated-left", "query, key and value are read as key, value, query",
                      lambda p, H: p._replace(query=p.key, key=p.value, value=p.query))  # fmt: skip
    yield projections("rotated-right", "query, key and value are read as value, query, key",
                      lambda p, H: p._replace(query=p.value, key=p.query, value=p.key))  # fmt: skip
    yield projections("heads-interleaved", "the columns of heads are read as [D, H]", interleave_heads)
    yield projections("fused-by-head", "the fused matrix is read as [H, 3, D] where it is [3, H, D]",
                      lambda p, H: fuse_otherwise(p, H, False))  # fmt: skip
    yield projections("fused-by-part", "the fused matrix is read as [3, H, D] where it is [H, 3, D]",
                      lambda p, H: fuse_otherwise(p, H, True))  # fmt: skip
    yield projections("heads-tiled", "query head h reads key head h % G", tile_heads, "ATT-7")
    yield projections("heads-merged-otherwise", "the results of heads are joined as [D, H]", merge_heads_otherwise)
    for name in ("query", "key", "value", "output"):
        yield projections(f"no-{name}-bias", f"the bias of the {name} projection is left out",
                          lambda p, H, name=name: p._replace(**{name: getattr(p, name)._replace(bias=None)}))  # fmt: skip
        yield projections(f"{name}-transposed", f"the weight of the {name} projection is read transposed",
                          lambda p, H, name=name: p._replace(**{name: transpose(getattr(p, name))}))  # fmt: skip
    yield projections("no-biases", "the biases of query, key and value are left out", lambda p, H: p._replace(
        **{name: getattr(p, name)._replace(bias=None) for name in ("query", "key", "value")}))  # fmt: skip
    yield projections("all-transposed", "the weights of all four projections are read transposed", lambda p, H:
                      p._replace(**{n: transpose(getattr(p, n)) for n in ("query", "key", "value", "output")}))  # fmt: skip
    for names, told in ((("query_norm", "key_norm"), "queries and keys are"), (("query_norm",), "queries are"),
                        (("key_norm",), "keys are")):  # fmt: skip
        yield projections(f"no-{'-'.join(names).replace('_', '-')}", f"{told} not normalised",
                          lambda p, H, names=names: p._replace(**dict.fromkeys(names)), "NORM-8")  # fmt: skip
    yield projections("no-sinks", "the sinks are ignored", lambda p, H: p._replace(sinks=None), "ATT-5")
    yield entry("no-bias", "POS-6", "the bias by relative positions is ignored", lambda s: complete(s).argument(
        BIAS, None))  # fmt: skip
    yield entry("no-cross-attention", "BLK-1", "the decoder attends to itself in place of the encoder's output",
                attend_to_itself)  # fmt: skip
    yield entry("left-out", "BLK-1", "the attention is left out", lambda s: s._replace(
        function=lambda p, x, *_, **__: np.zeros_like(x)))  # fmt: skip
    yield entry("norm-eps-of-heads", "NORM-8", "the norm of queries and keys has eps 1e-5",
                change_attention(lambda c: replace(c, norm_eps=1e-5)))  # fmt: skip


def attend_to_itself(step: Step) -> Step:
    if step.arguments[MEMORY] is step.arguments[QUERY]:
        return step
    return step.argument(MEMORY, step.arguments[QUERY]).argument(MASK, None)


def scale_twice(step: Step) -> Step:
    configuration, p = step.arguments[CONFIGURATION], step.arguments[PARAMETERS]
    width = join_heads(p.query).weight.shape[1] // configuration.num_heads
    scale = {"head_width": width**-0.5, "model_width": join_heads(p.query).weight.shape[0] ** -0.5}.get(
        configuration.scale, configuration.scale
    )
    return step.argument(CONFIGURATION, replace(configuration, scale=float(scale) ** 2))


def turn_back(step: Step) -> Step:
    """Sine and cosine of the other sign."""
    step = complete(step)
    rotation = step.arguments[ROTATION]
    return step if rotation is None else step.argument(ROTATION, rotation._replace(sine=-rotation.sine))


# --- feed-forward networks, sums, tables ------------------------------------------------------------------------------


def change_network(change: Callable[[Any], Any]) -> StepChange:
    def changed(step: Step) -> Step:
        try:
            return step.argument(0, change(step.arguments[0]))
        except (ValueError, AttributeError):
            return step

    return changed


def list_network_mistakes() -> Iterator[StepMistake]:
    kinds = ("transform",)
    names = {"relu": "ReLU", "gelu": "GELU by erf", "gelu_tanh": "GELU by tanh", "silu": "SiLU"}
    for name, told in names.items():
        change = lambda s, name=name: s.argument(3, replace(s.arguments[3], activation=name))  # noqa: E731
        yield StepMistake(f"network.{name.replace('_', '-')}", "FFN-1", f"the activation is {told}", change, kinds)
    yield StepMistake("network.gate-swapped", "FFN-2", "the activation is on the other of the two projections",
                      change_network(lambda p: p._replace(gate=p.inner, inner=p.gate)), kinds)  # fmt: skip
    yield StepMistake("network.not-gated", "FFN-2", "the gate is left out",
                      change_network(lambda p: FeedForward(p.inner, p.outer) if hasattr(p, "gate") else p), kinds)  # fmt: skip
    yield StepMistake("network.gate-alone", "FFN-2", "the product with the second projection is left out",
                      change_network(lambda p: FeedForward(p.gate, p.outer)), kinds)  # fmt: skip
    for name in ("inner", "outer", "gate"):
        yield StepMistake(f"network.no-{name}-bias", "FFN-1", f"the bias of the {name} projection is left out",
                          change_network(lambda p, name=name: p._replace(**{name: getattr(p, name)._replace(bias=None)})),
                          kinds)  # fmt: skip
    yield StepMistake("network.no-biases", "FFN-1", "the biases of the feed-forward network are left out", change_network(
        lambda p: type(p)(*(one._replace(bias=None) for one in p))), kinds)  # fmt: skip
    yield StepMistake("network.left-out", "BLK-1", "the feed-forward network is left out", lambda s: s._replace(
        function=lambda p, x, *_, **__: np.zeros_like(x)), kinds)  # fmt: skip


def list_sum_mistakes() -> Iterator[StepMistake]:
    yield StepMistake("residual.left-out", "BLK-1", "the residual connection is left out",
                      lambda s: s._replace(function=lambda x, y: np.broadcast_to(y, x.shape)), ("add",))  # fmt: skip
    yield StepMistake("residual.twice", "BLK-1", "the residual connection counts twice",
                      lambda s: s._replace(function=lambda x, y: 2 * x + y), ("add",))  # fmt: skip


def list_table_mistakes() -> Iterator[StepMistake]:
    def scaled(step: Step) -> Step:
        return step._replace(keywords=step.keywords | {"scaled": not step.keywords.get("scaled", False)})

    yield StepMistake("embedding.scale", "EMB-1", "embeddings are multiplied by sqrt(E), or are not, the other way "
                      "round", scaled, ("embedding",))  # fmt: skip
    for offset in (1, 2, -1):
        yield StepMistake(f"positions.offset-{offset}", "POS-2", f"positions begin at {offset}",
                          lambda s, offset=offset: move_positions(s, offset),
                          ("learned_positions", "sinusoidal_positions"))  # fmt: skip
    yield StepMistake("positions.left-out", "POS-2", "positions are left out", lambda s: s._replace(
        function=lambda *a, f=s.function, **k: 0 * f(*a, **k)), ("learned_positions", "sinusoidal_positions"))  # fmt: skip
    yield StepMistake("relative.one-sided", "POS-6", "relative positions count backwards only",
                      lambda s: s._replace(keywords=s.keywords | {"bidirectional": False}), RELATIVE)  # fmt: skip
    yield StepMistake("relative.two-sided", "POS-6", "relative positions count both ways", lambda s: s._replace(
        keywords=s.keywords | {"bidirectional": True}), RELATIVE)  # fmt: skip
    for furthest in (128, 64, 32):
        yield StepMistake(f"relative.furthest-{furthest}", "POS-6", f"the largest relative distance is {furthest}",
                          lambda s, f=furthest: s._replace(keywords=s.keywords | {"furthest": f}), RELATIVE)  # fmt: skip
    yield StepMistake("relative.mirrored", "POS-6", "relative positions have the wrong sign", mirror, RELATIVE)
    yield StepMistake("output.not-scaled", "TRF-1", "the output layer's input is not scaled",
                      lambda s: s._replace(function=lambda x: x), ("shrink",))  # fmt: skip
    yield StepMistake("output.no-softcap", "TRF-1", "the softcap of logits is left out",
                      lambda s: s._replace(function=lambda x, cap: x), ("squeeze",))  # fmt: skip
    yield StepMistake("output.no-bias", "TRF-1", "the output layer's bias is left out",
                      change_network(lambda p: p._replace(bias=None)), ("linear",))  # fmt: skip
    for order in ((0, 2, 3, 1), (0, 3, 1, 2)):
        yield StepMistake("patches.other-columns", "TRF-1", "a patch's columns go by row and column before channel",
                          lambda s: s._replace(function=patches_by_row), ("patches",))  # fmt: skip
        break
    yield StepMistake("patches.by-column", "TRF-1", "patches go column by column",
                      lambda s: s._replace(function=patches_by_column), ("patches",))  # fmt: skip
    yield StepMistake("class-token.last", "TRF-1", "the class token comes last", lambda s: s._replace(
        function=lambda row, x: np.concatenate([x, np.broadcast_to(row, (len(x), 1, len(row)))], 1)), ("prepend",))  # fmt: skip


RELATIVE = ("relative_position_bias",)


def mirror(step: Step) -> Step:
    function = step.function
    return step._replace(function=lambda *a, **k: np.swapaxes(function(*a, **k), -1, -2))


def move_positions(step: Step, offset: int) -> Step:
    """Positions from another one on; of a table, only as far as it reaches."""
    if step.kind == "learned_positions":
        table, length = step.arguments[:2]
        rows = np.clip(np.arange(length) + offset, 0, len(table) - 1)
        return step._replace(function=lambda *_, **__: table[rows])
    return step._replace(keywords=step.keywords | {"offset": step.keywords.get("offset", 0) + offset})


def patches_by_row(images: np.ndarray, size: int) -> Any:
    B, C, height, width = images.shape
    squares = images.reshape(B, C, height // size, size, width // size, size).transpose(0, 2, 4, 3, 5, 1)
    return squares.reshape(B, height // size * (width // size), C * size * size)


def patches_by_column(images: np.ndarray, size: int) -> Any:
    B, C, height, width = images.shape
    squares = images.reshape(B, C, height // size, size, width // size, size).transpose(0, 4, 2, 1, 3, 5)
    return squares.reshape(B, height // size * (width // size), C * size * size)


STEP_MISTAKES: tuple[StepMistake, ...] = (
    *list_norm_mistakes(),
    *list_attention_mistakes(),
    *list_network_mistakes(),
    *list_sum_mistakes(),
    *list_table_mistakes(),
)


# --- mistakes of a whole model ----------------------------------------------------------------------------------------


def change_parts(computation: Computation, change: Callable[[Any], Any]) -> Computation:
    """Change each stack of a model."""
    p: Any = computation.parameters
    if isinstance(p, Encoder | Decoder):
        return computation.change(parameters=change(p))
    parts = {n: change(part) for n, part in p._asdict().items() if isinstance(part, Encoder | Decoder)}
    return computation.change(parameters=p._replace(**parts))


def list_model_mistakes(computation: Computation) -> Iterator[ModelMistake]:
    """Give mistakes that are no other step: of the order of blocks and norms, of tables, of what is read twice."""
    configuration, p = computation.configuration, computation.parameters

    def configured(name: str, rule: str, says: str, **fields: Any) -> ModelMistake:
        return ModelMistake(name, rule, says, lambda c: c.change(configuration=replace(c.configuration, **fields)))

    told = {"post": "after the sum", "pre": "before the sublayer", "after": "after the sublayer",
            "parallel": "before both sublayers, which stand side by side"}  # fmt: skip
    for order, where in told.items():
        yield configured(f"order.{order}", "BLK-1", f"norms stand {where}", norm_order=order)
    for filling in CHOICES["empty_rows"]:
        yield configured(f"empty-rows.{filling}", "ATT-6", f"a row that attends to nothing gets {filling}",
                         empty_rows=filling)  # fmt: skip
    heads = configuration.num_heads
    for count in (heads // 2, heads * 2):
        yield configured(f"heads.{count}", "MHA-1", f"attention has {count} heads", num_heads=max(count, 1))
    layers = configuration.attention_layers
    if len(layers) > 1:
        yield configured("layers.shifted", "MASK-4", "the kinds of layers are shifted by one",
                         attention_layers=(*layers[1:], layers[0]))  # fmt: skip
        for i, layer in enumerate(dict.fromkeys(layers)):
            yield configured(f"layers.alike-{i}", "MASK-4", "all layers are of one kind",
                             attention_layers=(layer,))  # fmt: skip
        for name in ("window", "rotary"):
            for i, value in enumerate(dict.fromkeys(getattr(layer, name) for layer in layers)):
                every = tuple(replace(layer, **{name: value}) for layer in layers)
                yield configured(f"layers.one-{name}-{i}", "MASK-4" if name == "window" else "POS-3",
                                 f"all layers have the {name} of one kind", attention_layers=every)  # fmt: skip
    if configuration.positions in ("sinusoidal", "doubled"):
        other = "doubled" if configuration.positions == "sinusoidal" else "sinusoidal"
        yield configured(
            "positions.exponent", "POS-1", "the exponent of sinusoidal positions is another", positions=other
        )
    if configuration.scaled_output:
        yield configured("output.unscaled", "TRF-1", "the output layer's input is not scaled", scaled_output=False)
    if isinstance(p, LanguageModel | Transformer):
        yield configured("output.scaled", "TRF-1", "the output layer's input is multiplied by 1 / sqrt(E)",
                         scaled_output=True)  # fmt: skip
    yield ModelMistake("blocks.reversed", "TRF-1", "blocks are applied in reverse order",
                       lambda c: change_parts(c, lambda stack: stack._replace(blocks=stack.blocks[::-1])))  # fmt: skip
    yield ModelMistake("blocks.first-alone", "TRF-1", "every block has the parameters of the first",
                       lambda c: change_parts(c, lambda s: s._replace(blocks=[s.blocks[0]] * len(s.blocks))))  # fmt: skip
    yield ModelMistake("blocks.last-alone", "TRF-1", "every block has the parameters of the last",
                       lambda c: change_parts(c, lambda s: s._replace(blocks=[s.blocks[-1]] * len(s.blocks))))  # fmt: skip
    yield from list_block_mistakes(computation)
    yield from list_name_mistakes()
    yield ModelMistake("norm.last-left-out", "TRF-1", "the last norm is left out",
                       lambda c: change_parts(c, lambda stack: stack._replace(norm=None)))  # fmt: skip
    yield from list_option_mistakes(computation)
    if isinstance(p, LanguageModel):
        yield ModelMistake("output.tied", "TRF-1", "the output layer is the token table", tie_output)


def list_block_mistakes(computation: Computation) -> Iterator[ModelMistake]:
    for name, stack in list_stacks(computation).items():
        for i in range(len(stack.blocks)):

            def skip(c: Computation, i: int = i, name: str = name) -> Computation:
                stack = list_stacks(c)[name]
                blocks = [block for j, block in enumerate(stack.blocks) if j != i]
                layers = c.configuration.attention_layers
                layers = tuple(l for j, l in enumerate(layers) if j != i) if len(layers) > 1 else layers
                return replace_stack(c, name, stack._replace(blocks=blocks)).change(
                    configuration=replace(c.configuration, attention_layers=layers))  # fmt: skip

            yield ModelMistake(f"blocks.skipped-{i}", "TRF-1", f"block {i} is left out", skip, (f"{name}blocks.{i}.",))
            for j in range(len(stack.blocks)):
                if i != j:

                    def copy(c: Computation, i: int = i, j: int = j, name: str = name) -> Computation:
                        stack = list_stacks(c)[name]
                        blocks = [stack.blocks[j] if k == i else block for k, block in enumerate(stack.blocks)]
                        return replace_stack(c, name, stack._replace(blocks=blocks))

                    yield ModelMistake("blocks.copied", "TRF-1", f"block {i} has the parameters of block {j}", copy,
                                       (f"{name}blocks.{i}.",))  # fmt: skip


def replace_stack(computation: Computation, name: str, stack: Any) -> Computation:
    if not name:
        return computation.change(parameters=stack)
    p: Any = computation.parameters
    return computation.change(parameters=p._replace(**{name.rstrip("."): stack}))


NORM_SWAPS = (
    ("attention_norm", "feed_forward_norm"),
    ("self_attention_norm", "feed_forward_norm"),
    ("self_attention_norm", "self_attention_output_norm"),
    ("feed_forward_norm", "feed_forward_output_norm"),
    ("self_attention_output_norm", "feed_forward_norm"),
    ("self_attention_output_norm", "feed_forward_output_norm"),
)


def list_name_mistakes() -> Iterator[ModelMistake]:
    """Give norms of a block that are read for one another."""
    for one, other in NORM_SWAPS:

        def swap(c: Computation, one: str = one, other: str = other) -> Computation:
            def change(block: Any) -> Any:
                if getattr(block, one, None) is None or getattr(block, other, None) is None:
                    return block
                return block._replace(**{one: getattr(block, other), other: getattr(block, one)})

            return change_parts(c, lambda stack: stack._replace(blocks=[change(block) for block in stack.blocks]))

        yield ModelMistake(f"norm.swapped-{one}-{other}".replace("_", "-"), "BLK-1",
                           f"the norms {one} and {other} have changed places", swap)  # fmt: skip


def list_option_mistakes(computation: Computation) -> Iterator[ModelMistake]:
    """Give mistakes in what the caller says: token types, padding as the positions see it."""
    options = computation.options

    def without(*names: str) -> Callable[[Computation], Computation]:
        return lambda c: c.change(options={name: value for name, value in c.options.items() if name not in names})

    if "token_types" in options:
        yield ModelMistake("token-types.ignored", "EMB-1", "token types are ignored", without("token_types"))
    for name in ("source_key_padding", "target_key_padding"):
        if name in options:
            yield ModelMistake(
                f"padding.{name.replace('_', '-')}-ignored", "MASK-2", f"{name} is ignored", without(name)
            )
    p: Any = computation.parameters
    stack = p if isinstance(p, Encoder | Decoder) else p[0]
    table = getattr(getattr(stack, "embedding", None), "positions", None)
    if "key_padding" in options and table is not None:
        yield ModelMistake("positions.of-real-tokens", "POS-2", "positions count real tokens only", count_real_tokens)
    embedding = getattr(stack, "embedding", None)
    if getattr(embedding, "token_types", None) is not None:

        def drop_types(step: Step) -> Step:
            if step.name == "embedding.token_types" and step.kind == "embedding":
                return step._replace(function=lambda table, ids, **_: 0 * table[ids])
            return step

        yield ModelMistake("token-types.left-out", "EMB-1", "the table of token types is left out",
                           lambda c: c.rewrite(drop_types))  # fmt: skip


def count_real_tokens(computation: Computation) -> Computation:
    keep = computation.options.get("key_padding")
    if keep is None:
        return computation
    rows = np.maximum(np.cumsum(keep, axis=1) - 1, 0)

    def rewrite(step: Step) -> Step:
        if step.kind != "learned_positions":
            return step
        return step._replace(function=lambda table, *_, **__: table[rows])

    return computation.rewrite(rewrite)


def tie_output(computation: Computation) -> Computation:
    p: Any = computation.parameters
    return computation.change(parameters=p._replace(output=p.output._replace(weight=p.decoder.embedding.tokens.T)))


def list_mistakes(computation: Computation) -> Iterator[ModelMistake]:
    """Give every known mistake that may change this computation, in every scope, the largest first."""
    kinds: set[tuple[str, str]] = set()

    def note(step: Step) -> Step:
        kinds.add((step.kind, step.name))
        return step

    computation.rewrite(note).run()
    scopes = list_scopes(computation)
    yield from list_model_mistakes(computation)
    for mistake in STEP_MISTAKES:
        names = [name for kind, name in kinds if kind in mistake.kinds]
        seen: set[frozenset[str]] = set()
        for scope in scopes:
            reached = frozenset(name for name in names if not scope or name.startswith(scope))
            if reached and reached not in seen:
                seen.add(reached)
                yield mistake.within(scope)
