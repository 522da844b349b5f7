"""Mistakes of a whole model: the order of blocks and norms, what is read twice, what the caller says."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import fields, replace
from functools import partial
from typing import Any, cast

import numpy as np

from conformance.ports.computation import Computation, Step
from conformance.ports.mistakes import cache
from conformance.ports.mistakes.mistake import (
    SUBLAYERS,
    ModelMistake,
    Scope,
    change_fields,
    change_stacks,
    list_stacks,
    replace_stack,
)
from conformance.ports.mistakes.norms import initial_weight
from conformance.ports.mistakes.wiring import list_rewired, replace_input
from reference_numpy.blocks import normalize
from specification.configuration import CHOICES, AttentionLayer, Configuration
from specification.parameters import Embedding, LanguageModel, Norm, Transformer, mapped

ORDERS = {
    "post": "norms stand after the sum",
    "pre": "norms stand before the sublayer",
    "after": "norms stand after the sublayer, before the sum",
    "parallel": "both sublayers get the same input, and stand side by side",
}
MOVABLE = ("post", "pre", "after")
"""Orders with one norm for each sublayer, between which a single one may stand otherwise."""
NORM_SWAPS = (
    ("attention_norm", "feed_forward_norm"),
    ("self_attention_norm", "feed_forward_norm"),
    ("self_attention_norm", "self_attention_output_norm"),
    ("feed_forward_norm", "feed_forward_output_norm"),
    ("self_attention_output_norm", "feed_forward_norm"),
    ("self_attention_output_norm", "feed_forward_output_norm"),
    ("cross_attention_norm", "feed_forward_norm"),
    ("self_attention_norm", "cross_attention_norm"),
)
"""Norms of a block that are read for one another, as their names in a checkpoint suggest."""


Layers = tuple[AttentionLayer, ...]


def configure(id: str, rule: str, says: str, **entries: Any) -> ModelMistake:
    return ModelMistake(id, rule, says, lambda c: c.change(configuration=replace(c.configuration, **entries)))


def change_layers(id: str, rule: str, says: str, change: Callable[[Layers], Layers]) -> ModelMistake:
    """Make other layers of those that a model has: windows and rotations differ from config to config."""

    def changed(computation: Computation) -> Computation:
        configuration = computation.configuration
        layers = change(configuration.attention_layers)
        return computation.change(configuration=replace(configuration, attention_layers=layers))

    return ModelMistake(id, rule, says, changed)


def change_blocks(id: str, says: str, change: Callable[[list[Any]], list[Any]]) -> ModelMistake:
    return ModelMistake(
        id, "TRF-1", says, lambda c: change_stacks(c, lambda stack: stack._replace(blocks=change(stack.blocks)))
    )


def list_configured(computation: Computation) -> Iterator[ModelMistake]:
    """Give other configurations."""
    configuration, p = computation.configuration, computation.parameters
    for order, says in ORDERS.items():
        yield configure(f"order.{order}", "BLK-1", says, norm_order=order)
    for filling in CHOICES["empty_rows"]:
        says = f"a row that may attend to nothing gets {filling}"
        yield configure(f"empty-rows.{filling}", "ATT-6", says, empty_rows=filling)
    for heads in (configuration.num_heads // 2, configuration.num_heads * 2):
        yield configure(f"heads.{heads}", "MHA-1", f"attention has {heads} heads", num_heads=max(heads, 1))
    if configuration.positions in ("sinusoidal", "doubled"):
        other = "doubled" if configuration.positions == "sinusoidal" else "sinusoidal"
        yield configure("positions.exponent", "POS-1", "the exponent of positions is another", positions=other)
    if isinstance(p, LanguageModel | Transformer):
        yield configure("output.scaled", "TRF-1", "the output layer's input is divided by sqrt(E)", scaled_output=True)
    yield from list_layer_kinds(computation)


OPTION_RULES = {
    "activation": "FFN-1", "norm": "NORM-7", "norm_eps": "NORM-1", "norm_order": "BLK-1", "scale": "ATT-1",
    "softcap": "ATT-2", "num_heads": "MHA-1", "scaled_embedding": "EMB-1", "attention_layers": "POS-3",
}  # fmt: skip
"""By field of the configuration, the rule that it belongs to."""


def list_ignored_options(own: Configuration, others: Iterable[Configuration]) -> Iterator[ModelMistake]:
    """Give the configuration with one field as another config has it, as of a port that ignores the option."""
    for name in (field.name for field in fields(own)):
        values = {repr(value): value for value in (getattr(other, name) for other in others)}
        values.pop(repr(getattr(own, name)), None)
        for text, value in values.items():
            shown = "as in another config" if name == "attention_layers" else f"{text}, as in another config"
            says = f"an option is ignored: {name} is {shown}"
            yield configure(f"option.{name.replace('_', '-')}", OPTION_RULES.get(name, "TRF-1"), says, **{name: value})


def list_layer_kinds(computation: Computation) -> Iterator[ModelMistake]:
    """Give windows and rotations that stand in other layers."""
    layers = computation.configuration.attention_layers
    if len(layers) < 2:
        return
    yield change_layers("layers.shifted", "MASK-4", "the kinds of layers are shifted by one", shift_layers)
    rules = {"window": "MASK-4", "rotary": "POS-3"}
    for name, rule in rules.items():
        says = f"the {name}s of layers are shifted by one"
        yield change_layers(f"layers.{name}-shifted", rule, says, partial(shift_field, name))
        # That no layer has one is a mistake of attention.
        for i in range(len(list_values(name, layers))):
            says = f"all layers have the {name} of one kind"
            yield change_layers(f"layers.one-{name}-{i}", rule, says, partial(share_field, name, i))


def shift_layers(layers: Layers) -> Layers:
    return (*layers[1:], layers[0])


def shift_field(name: str, layers: Layers) -> Layers:
    pairs = zip(layers, shift_layers(layers), strict=True)
    return tuple(replace(one, **{name: getattr(other, name)}) for one, other in pairs)


def list_values(name: str, layers: Layers) -> list[Any]:
    """The values of a field that some layer has, without None."""
    return [value for value in dict.fromkeys(getattr(layer, name) for layer in layers) if value is not None]


def share_field(name: str, number: int, layers: Layers) -> Layers:
    value = list_values(name, layers)[number]
    return tuple(replace(layer, **{name: value}) for layer in layers)


def list_block_orders(computation: Computation) -> Iterator[ModelMistake]:
    """Give blocks that are left out, copied, or in another order."""
    yield change_blocks("blocks.reversed", "blocks are applied in reverse order", lambda blocks: blocks[::-1])
    first, last = "every block has the parameters of the first", "every block has the parameters of the last"
    yield change_blocks("blocks.first-alone", first, lambda blocks: [copy_structure(blocks[0]) for _ in blocks])
    yield change_blocks("blocks.last-alone", last, lambda blocks: [copy_structure(blocks[-1]) for _ in blocks])
    for name, stack in list_stacks(computation).items():
        for i in range(len(stack.blocks)):
            scope = (f"{name}blocks.{i}.",)
            yield ModelMistake("blocks.left-out", "TRF-1", "the block is left out", skip_block(name, i), scope)
            for j in range(len(stack.blocks)):
                if i != j:
                    says = f"the block has the parameters of block {j}"
                    yield ModelMistake("blocks.copied", "TRF-1", says, copy_block(name, i, j), scope)


def copy_structure(block: Any) -> Any:
    """Return a block with the same arrays: steps are named after the identity of their parameters."""
    return mapped(lambda array: array, block)


def skip_block(name: str, i: int) -> Callable[[Computation], Computation]:
    def change(computation: Computation) -> Computation:
        stack, layers = list_stacks(computation)[name], computation.configuration.attention_layers
        blocks: Any = [block for j, block in enumerate(stack.blocks) if j != i]
        layers = tuple(layer for j, layer in enumerate(layers) if j != i) if len(layers) > 1 else layers
        configuration = replace(computation.configuration, attention_layers=layers)
        return replace_stack(computation, name, stack._replace(blocks=blocks)).change(configuration=configuration)

    return change


def copy_block(name: str, i: int, j: int) -> Callable[[Computation], Computation]:
    def change(computation: Computation) -> Computation:
        stack = list_stacks(computation)[name]
        blocks: Any = [copy_structure(stack.blocks[j]) if k == i else block for k, block in enumerate(stack.blocks)]
        return replace_stack(computation, name, stack._replace(blocks=blocks))

    return change


def list_swapped_norms() -> Iterator[ModelMistake]:
    for one, other in NORM_SWAPS:

        def swap(block: Any, one: str = one, other: str = other) -> Any:
            if getattr(block, one, None) is None or getattr(block, other, None) is None:
                return block
            return block._replace(**{one: getattr(block, other), other: getattr(block, one)})

        name = f"norm.swapped-{one}-{other}".replace("_", "-")
        says = f"{one} and {other} have changed places"
        yield replace(change_blocks(name, says, partial(map_blocks, swap)), rule="BLK-1")
        for read, due in ((one, other), (other, one)):
            name = f"norm.{read}-as-{due}".replace("_", "-")
            says, copy = f"{read} stands in the place of {due} too", partial(copy_norm, read=read, due=due)
            yield replace(change_blocks(name, says, partial(map_blocks, copy)), rule="BLK-1")


def list_last_norms(computation: Computation) -> Iterator[ModelMistake]:
    """Give last norms that have the parameters of another norm."""
    for name, stack in list_stacks(computation).items():
        for path in find_norms(computation) if stack.norm is not None else ():
            if path.startswith(name):
                says = f"the norm has the parameters of that of {path.removeprefix(name)}"
                change = partial(copy_last_norm, name, path)
                yield ModelMistake("norm.last-from-block", "TRF-1", says, change, (f"{name}norm",))


def copy_last_norm(name: str, path: str, computation: Computation) -> Computation:
    stack, norm = list_stacks(computation)[name], copy_structure(find_norms(computation)[path])
    return replace_stack(computation, name, stack._replace(norm=norm))


def list_moved_norms(computation: Computation) -> Iterator[ModelMistake]:
    """Give norms that stand elsewhere around one kind of sublayer, in one block, or in one sublayer."""
    own = computation.configuration.norm_order
    if own not in MOVABLE:
        return
    sublayers = [*find_norms(computation)]
    scopes = [tuple(path for path in sublayers if path.endswith(f".{part}")) for part in SUBLAYERS]
    blocks = dict.fromkeys(path.rpartition(".")[0] for path in sublayers)
    scopes += [tuple(path for path in sublayers if path.startswith(f"{block}.")) for block in blocks]
    scopes += [(path,) for path in sublayers]
    for order in MOVABLE:
        for scope in dict.fromkeys(filter(None, scopes)) if order != own else ():
            yield ModelMistake(f"order.{order}", "BLK-1", ORDERS[order], partial(move_norms, order, scope), scope)


def find_norms(computation: Computation) -> dict[str, Norm]:
    """By the name of its sublayer, each norm that stands before or after one."""
    return {
        f"{name}blocks.{i}.{part}": norm
        for name, stack in list_stacks(computation).items()
        for i, block in enumerate(cast("Iterable[Any]", stack.blocks))
        for part in SUBLAYERS
        if (norm := getattr(block, f"{part}_norm", None)) is not None
    }


def move_norms(order: str, sublayers: Scope, computation: Computation) -> Computation:
    norms, configuration = find_norms(computation), computation.configuration

    def rewrite(step: Step) -> Step:
        path = step.name.partition(":")[0]
        if step.kind == "normalize" and path.removesuffix("_norm") in sublayers:
            return step._replace(function=lambda norm, x, configuration: x)
        if path not in sublayers:
            return step
        norm = partial(normalize, norms[path], configuration=configuration)
        if order == "pre" and step.kind in ("attend", "transform"):
            return replace_input(step, norm(step.arguments[1]))
        if order == "after" and step.kind == "add":
            return step.argument(1, norm(step.arguments[1]))
        if order == "post" and step.kind == "add":
            return step._replace(function=lambda x, y: norm(step.function(x, y)))
        return step

    return computation.rewrite(rewrite)


def add_norms(stack: Any) -> Any:
    """Blocks that lack the norm of others have one as training begins with it."""
    names = [name for name in stack.blocks[0]._fields if name.endswith("_norm")]
    found = {name: [getattr(block, name) for block in stack.blocks] for name in names}
    first = {name: next(filter(None, norms)) for name, norms in found.items() if any(norms) and not all(norms)}
    blocks = stack.blocks
    for name, norm in first.items():
        new = Norm(np.ones_like(norm.weight), None if norm.bias is None else np.zeros_like(norm.bias))
        blocks = [block if getattr(block, name) is not None else block._replace(**{name: new}) for block in blocks]
    return stack._replace(blocks=blocks)


def list_shared_parts(computation: Computation) -> Iterator[ModelMistake]:
    """Give blocks that read a part of the first one: a name in a loop without the number of the block."""
    paths: dict[tuple[str, ...], None] = {}
    for stack in list_stacks(computation).values():
        for name, value in zip(stack.blocks[0]._fields, stack.blocks[0], strict=True):
            parts = getattr(value, "_fields", ())
            paths |= dict.fromkeys([(name,)] if name.endswith("norm") else [(name, part) for part in parts])
    for path in paths:
        says = f"every block has the {'.'.join(path)} of the first"
        id = f"blocks.first-{'-'.join(path)}".replace("_", "-")
        yield change_blocks(id, says, partial(share_part, path))


def share_part(path: tuple[str, ...], blocks: list[Any]) -> list[Any]:
    return [blocks[0], *(copy_part(block, blocks[0], path) for block in blocks[1:])]


def copy_part(target: Any, source: Any, path: tuple[str, ...]) -> Any:
    name, *rest = path
    if getattr(target, name, None) is None or getattr(source, name, None) is None:
        return target
    own, other = getattr(target, name), getattr(source, name)
    return target._replace(**{name: copy_part(own, other, (*rest,)) if rest else copy_structure(other)})


def map_blocks(change: Callable[[Any], Any], blocks: list[Any]) -> list[Any]:
    return [*map(change, blocks)]


def copy_norm(block: Any, read: str, due: str) -> Any:
    if getattr(block, read, None) is None or getattr(block, due, None) is None:
        return block
    return block._replace(**{due: copy_structure(getattr(block, read))})


# --- residual connections from elsewhere ------------------------------------------------------------------------------


def normalize_sum(*parts: str) -> Callable[[Computation], Computation]:
    """The norm after these sublayers is one of the sum with the residual connection."""
    names = tuple(f"{part}_output_norm" for part in parts)

    def change(computation: Computation) -> Computation:
        held: list[Callable[[np.ndarray], Any]] = []

        def rewrite(step: Step) -> Step:
            if step.kind == "normalize" and step.name.endswith(names):

                def leave(norm: Any, output: np.ndarray, configuration: Any) -> Any:
                    held[:] = [lambda x: step.function(norm, x, configuration)]
                    return output

                return step._replace(function=leave)
            if step.kind != "add" or not held:
                return step
            normalize = held.pop()
            return step._replace(function=lambda x, y: normalize(step.function(x, y)))

        return computation.rewrite(rewrite)

    return change


def normalize_attention_output(computation: Computation) -> Computation:
    """The feed-forward network's norm is applied to what the attention gives, before the sum."""
    norms: dict[str, Any] = {
        f"{name}blocks.{i}.": block.feed_forward_norm
        for name, stack in list_stacks(computation).items()
        for i, block in enumerate(cast("Iterable[Any]", stack.blocks))
    }

    def rewrite(step: Step) -> Step:
        if step.kind == "normalize" and step.name.endswith(".feed_forward_norm"):
            return step._replace(function=lambda norm, x, configuration: x)
        block, _, part = step.name.partition("attention")
        norm = norms.get(block.removesuffix("self_"))
        if step.kind != "add" or not part or norm is None:
            return step
        return step.argument(1, normalize(norm, step.arguments[1], computation.configuration))

    return computation.rewrite(rewrite)


# --- what the caller says ---------------------------------------------------------------------------------------------


def drop_options(*names: str) -> Callable[[Computation], Computation]:
    return lambda c: c.change(options={name: value for name, value in c.options.items() if name not in names})


def count_real_tokens(computation: Computation) -> Computation:
    """Learned positions count the tokens that are not padding."""
    keep = computation.options.get("key_padding")
    if keep is None:
        return computation
    rows = np.maximum(np.cumsum(keep, axis=1) - 1, 0)

    def rewrite(step: Step) -> Step:
        if step.kind != "learned_positions":
            return step
        return step._replace(function=lambda table, *_, **__: table[rows])

    return computation.rewrite(rewrite)


def drop_token_types(computation: Computation) -> Computation:
    def rewrite(step: Step) -> Step:
        if step.kind != "embedding" or not step.name.endswith("token_types"):
            return step
        return step._replace(function=lambda table, ids, **_: 0 * table[ids])

    return computation.rewrite(rewrite)


def drop_usual_type(computation: Computation) -> Computation:
    """Where the caller passes no types, nothing is added, in place of the type 0."""
    return computation if computation.options.get("token_types") is not None else drop_token_types(computation)


def take_second_type(computation: Computation) -> Computation:
    """Where the caller passes no types, tokens have the type 1."""

    def rewrite(step: Step) -> Step:
        is_table = step.kind == "embedding" and step.name.endswith("token_types")
        return step.argument(1, np.ones_like(step.arguments[1])) if is_table and len(step.arguments[0]) > 1 else step

    return computation if computation.options.get("token_types") is not None else computation.rewrite(rewrite)


def add_after_norm(kind: str, name: str) -> Callable[[Computation], Computation]:
    """What a part of the embedding gives is added to what the embedding's norm gives, not to its input."""

    def change(computation: Computation) -> Computation:
        held: list[Any] = []

        def rewrite(step: Step) -> Step:
            function = step.function

            def hold(*arguments: Any, **keywords: Any) -> Any:
                held[:] = [function(*arguments, **keywords)]
                return 0 * held[0]

            if step.kind == kind and step.name.endswith(name):
                return step._replace(function=hold)
            if step.kind == "normalize" and step.name.endswith("embedding.norm") and held:
                return step._replace(function=lambda *arguments: function(*arguments) + held[0])
            return step

        return computation.rewrite(rewrite)

    return change


def take_zeros_for_padding(computation: Computation) -> Computation:
    """Padding is where the token is 0, whatever the caller says."""
    tokens = computation.inputs[0]
    if tokens.dtype.kind != "i":
        return computation
    name = "source_key_padding" if len(computation.inputs) == 2 else "key_padding"
    return computation.change(options={**computation.options, name: tokens != 0})


def pad_memory_only(computation: Computation) -> Computation:
    """Padding of the source is masked in the cross-attention alone."""
    return rewrite_masks(computation, "encoder.", lambda _: None)


def show_padded_memory(computation: Computation) -> Computation:
    """Padding of the source is not masked in the cross-attention."""

    def rewrite(step: Step) -> Step:
        return step.argument(3, None) if step.kind == "attend" and "cross_attention" in step.name else step

    return computation.rewrite(rewrite)


def rewrite_masks(computation: Computation, scope: str, change: Callable[[Any], Any]) -> Computation:
    def rewrite(step: Step) -> Step:
        if step.kind != "attend" or not step.name.startswith(scope):
            return step
        return step.argument(3, change(step.arguments[3]))

    return computation.rewrite(rewrite)


def tie_output(computation: Computation) -> Computation:
    p: Any = computation.parameters
    return computation.change(parameters=p._replace(output=p.output._replace(weight=p.decoder.embedding.tokens.T)))


def read_output_as_table(computation: Computation) -> Computation:
    p: Any = computation.parameters
    embedding = p.decoder.embedding._replace(tokens=p.output.weight.T)
    return computation.change(parameters=p._replace(decoder=p.decoder._replace(embedding=embedding)))


def normalize_embedding(eps: float | None) -> Callable[[Computation], Computation]:
    """Give an embedding without norm one of the model's kind, as training begins with it. eps: None for the model's."""

    def change(computation: Computation) -> Computation:
        weight = initial_weight(computation.configuration)
        added: list[Norm] = []

        def add_norm(stack: Any) -> Any:
            embedding = stack.embedding
            if not isinstance(embedding, Embedding) or embedding.norm is not None:
                return stack
            added.append(Norm(np.full(embedding.tokens.shape[1], weight)))
            return stack._replace(embedding=embedding._replace(norm=added[-1]))

        def rewrite(step: Step) -> Step:
            if eps is None or step.kind != "normalize" or not any(step.arguments[0] is norm for norm in added):
                return step
            return change_fields(2, norm_eps=eps)(step)

        return change_stacks(computation, add_norm).rewrite(rewrite)

    return change


def cap_before_output(computation: Computation) -> Computation:
    """What the output layer is given is capped, in place of the logits."""
    cap = computation.configuration.output_softcap

    def rewrite(step: Step) -> Step:
        if step.kind == "squeeze":
            return step._replace(function=lambda x, cap: x)
        if step.kind == "linear" and step.name == "output" and cap is not None:
            return step.argument(1, cap * np.tanh(step.arguments[1] / cap))
        return step

    return computation.rewrite(rewrite)


def share_table(reader: str, owner: str) -> Callable[[Computation], Computation]:
    """One stack has the relative positions of the other."""

    def change(computation: Computation) -> Computation:
        stacks = list_stacks(computation)
        table = getattr(stacks.get(f"{owner}."), "relative_positions", None)
        if table is None or f"{reader}." not in stacks:
            return computation
        stack: Any = stacks[f"{reader}."]
        return replace_stack(computation, f"{reader}.", stack._replace(relative_positions=np.array(table)))

    return change


MISTAKES = (
    ModelMistake(
        "norm.last-left-out",
        "TRF-1",
        "the last norm is left out",
        lambda c: change_stacks(c, lambda stack: stack._replace(norm=None)),
    ),
    ModelMistake(
        "norm.added",
        "BLK-1",
        "blocks that have no such norm are given one, as training begins with it",
        lambda c: change_stacks(c, add_norms),
    ),
    *(
        ModelMistake(f"residual.{name}norm-of-sum", "BLK-1", f"the norm after {says} is one of the sum", change)
        for name, says, change in (
            ("", "a sublayer", normalize_sum("attention", "feed_forward")),
            ("attention-", "the attention", normalize_sum("attention")),
            ("network-", "the feed-forward network", normalize_sum("feed_forward")),
        )
    ),
    *(
        ModelMistake(f"embedding.normalized{name}", "EMB-1", f"a norm follows the embedding{says}", change)
        for name, says, change in (
            ("", "", normalize_embedding(None)),
            ("-eps-1e-05", ", with the eps 1e-05", normalize_embedding(1e-5)),
        )
    ),
    ModelMistake(
        "norm.feed-forward-norm-of-attention",
        "BLK-1",
        "feed_forward_norm is applied to what the attention gives",
        normalize_attention_output,
    ),
    ModelMistake("token-types.ignored", "EMB-1", "token types are ignored", drop_options("token_types")),
    ModelMistake(
        "token-types.second", "EMB-1", "tokens have the type 1 where the caller passes no types", take_second_type
    ),
    ModelMistake(
        "token-types.after-norm",
        "TRF-1",
        "token types are added after the embedding's norm",
        add_after_norm("embedding", "token_types"),
    ),
    ModelMistake(
        "positions.after-norm",
        "TRF-1",
        "positions are added after the embedding's norm",
        add_after_norm("learned_positions", ""),
    ),
    ModelMistake("padding.zeros", "MASK-2", "tokens that are 0 are taken for padding", take_zeros_for_padding),
    ModelMistake("token-types.left-out", "EMB-1", "the table of token types is left out", drop_token_types),
    ModelMistake(
        "token-types.no-usual",
        "EMB-1",
        "nothing of the table of token types is added where the caller passes no types, in place of the type 0",
        drop_usual_type,
    ),
    ModelMistake(
        "padding.source-ignored", "MASK-2", "padding of the source is ignored", drop_options("source_key_padding")
    ),
    ModelMistake(
        "padding.target-ignored", "MASK-2", "padding of the target is ignored", drop_options("target_key_padding")
    ),
    ModelMistake("padding.encoder-ignored", "MASK-2", "padding is not masked in the encoder", pad_memory_only),
    ModelMistake(
        "padding.memory-ignored", "MASK-2", "padding is not masked in the cross-attention", show_padded_memory
    ),
    *(
        ModelMistake(
            f"relative.table-of-{owner}",
            "POS-6",
            f"the {reader} has the {owner}'s table of relative positions",
            share_table(reader, owner),
        )
        for reader, owner in (("decoder", "encoder"), ("encoder", "decoder"))
    ),
    ModelMistake("positions.of-real-tokens", "POS-2", "positions count real tokens only", count_real_tokens),
)


def list_mistakes_of_models(computation: Computation) -> Iterator[ModelMistake]:
    """Give the mistakes that this model may have."""
    yield from list_configured(computation)
    yield from list_block_orders(computation)
    yield from list_shared_parts(computation)
    yield from list_swapped_norms()
    yield from list_last_norms(computation)
    yield from list_moved_norms(computation)
    yield from MISTAKES
    yield from list_rewired(computation)
    yield from cache.MISTAKES if computation.chunks else ()
    if isinstance(computation.parameters, LanguageModel | Transformer) and computation.parameters.output is not None:
        if computation.configuration.output_softcap is not None:
            says = "the softcap is applied to the output layer's input, not to the logits"
            yield ModelMistake("output.softcap-early", "TRF-1", says, cap_before_output)
        yield ModelMistake("output.tied", "TRF-1", "the output layer is the token table", tie_output)
        says = "the token table is the output layer's weight, as where tied ones are loaded twice"
        yield ModelMistake("embedding.is-output", "EMB-1", says, read_output_as_table)
