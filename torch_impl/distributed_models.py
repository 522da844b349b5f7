"""Models of which every rank has a part of the sequence, in PyTorch (DIST-7), by `torch.distributed`.

Norms, projections and networks take every position by itself, so a rank computes those of its own positions. Attention
goes over all ranks, and positions count in the whole. Each function takes the arguments of its namesake in
`transformer.py`, for this rank's part.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from jaxtyping import Bool, Float, Integer
from torch.autograd.function import once_differentiable

from specification import checks
from specification.checks.arguments import one_of
from specification.configuration import Configuration
from specification.distributed import LAYOUTS, Pieces, pieces_of_lengths
from specification.dropout import DecoderBlockDropout, EncoderBlockDropout, StackDropout, TransformerDropout
from specification.dtypes import dtype_name
from specification.masks import Causal, Mask, both
from specification.parameters import Decoder, Embedding, Encoder, LanguageModel, Transformer, leaves, mapped
from torch_impl.blocks import add, decoder_block, drop, encoder_block, normalize_if, rotations_of
from torch_impl.distributed import (
    gather_rows,
    head_parallel_attention,
    length_of,
    places_of,
    ring_attention,
)
from torch_impl.dtypes import widen
from torch_impl.embedding import check_rows, embedding
from torch_impl.ranks import Members, compare_calls, members_of, sum_over_ranks
from torch_impl.transformer import (
    embed,
    output_layer,
    padding_mask,
    position_bias,
    positions_after_padding,
    target_mask,
)

__all__ = ["Ranks", "decoder", "encoder", "language_model", "transformer"]

SCHEMES: dict[str, Callable[..., Any]] = {"ring": ring_attention, "heads": head_parallel_attention}
KINDS = {"encoder": Encoder, "decoder": Decoder, "transformer": Transformer, "language_model": LanguageModel}
"""The parameters of each function, and of each stack within them."""


class Ranks(NamedTuple):
    """Which ranks share a sequence, which positions each has, and how attention goes over all of them.

    group, layout, engine: As in `ring_attention`. scheme: "ring" for that one, "heads" for `head_parallel_attention`.
    """

    group: dist.ProcessGroup | None = None
    layout: str = "contiguous"
    scheme: str = "ring"
    engine: str = "auto"

    def __call__(self, *arrays: torch.Tensor, **options: Any) -> torch.Tensor:
        """`attention` of the whole, for this rank's queries."""
        for name in ("dropout_keep", "dropout_rate", "empty_rows"):  # known to be their defaults
            del options[name]
        return SCHEMES[self.scheme](*arrays, group=self.group, layout=self.layout, engine=self.engine, **options)


class Part(NamedTuple):
    """What this rank knows of a sequence of which it has a part."""

    members: Members
    pieces: list[Pieces]  # of every rank

    @property
    def own(self) -> Pieces:
        return self.pieces[self.members.rank]

    @property
    def length(self) -> int:
        """Of the whole."""
        return sum(map(length_of, self.pieces))

    def positions(self, device: torch.device) -> torch.Tensor:
        return torch.cat([torch.arange(*piece, device=device) for piece in self.own])

    def gather(self, ids: torch.Tensor) -> torch.Tensor:
        """[B, T] of the whole, from every rank's part."""
        to_all = [(0, 1)] * self.members.ranks
        return gather_rows(self.members, self.pieces, to_all, ids.long()[:, None, :, None])[:, 0, :, 0]


# --- models -----------------------------------------------------------------------------------------------------------


def encoder(
    parameters: Encoder,
    x: Float[torch.Tensor, "B T E"] | Integer[torch.Tensor, "B T"],
    *,
    configuration: Configuration,
    mask: Mask | Bool[torch.Tensor, "..."] | None = None,
    token_types: Integer[torch.Tensor, "B T"] | None = None,
    dropout: StackDropout = StackDropout(),
    ranks: Ranks,
) -> Float[torch.Tensor, "B T E"]:
    """Compute this rank's positions of `encoder` of the whole (DIST-7).

    Args:
        parameters: Embedding, blocks and norm, the same on every rank. Their gradients are those of the whole, the sums
            over ranks.
        x: [B, T] tokens, this rank's part, or [B, T, E] where the parameters have no embedding.
        configuration: As in `encoder`; empty_rows is "zero".
        mask: Of the whole and the same on every rank, beside that of the source's padding.
        token_types: [B, T], this rank's part.
        dropout: As in `encoder`, of this rank's positions; none of attention's weights.
        ranks: Who shares the sequence, and how.

    Returns:
        A new array [B, T, E], this rank's positions. It can be differentiated once.

    Raises:
        TypeError: Dtypes or structures that are not as described, on any rank.
        ValueError: Sizes or numbers that are not as described, on any rank, or calls that differ.
    """
    (part,) = compare_parts(
        "encoder", parameters, ranks, configuration, lambda: [Given("", x, dropout, token_types=token_types)]
    )
    parameters = sum_gradients(part.members, parameters)
    return compute_encoder_part(parameters, x, part, ranks, configuration, mask, token_types, dropout)[0]


def decoder(
    parameters: Decoder,
    x: Float[torch.Tensor, "B T E"] | Integer[torch.Tensor, "B T"],
    memory: Float[torch.Tensor, "B S E"] | None = None,
    *,
    configuration: Configuration,
    mask: Mask | Bool[torch.Tensor, "..."] | None = None,
    memory_mask: Mask | Bool[torch.Tensor, "..."] | None = None,
    dropout: StackDropout = StackDropout(),
    ranks: Ranks,
) -> Float[torch.Tensor, "B T E"]:
    """Compute this rank's positions of `decoder` of the whole (DIST-7).

    Args:
        parameters, configuration, dropout, ranks: As in `encoder`.
        x: [B, T] tokens, this rank's part, or [B, T, E] where the parameters have no embedding.
        memory: [B, S, E], this rank's part of the encoder's output, or None. S need not be T.
        mask: Of the whole, beside what the configuration's target_mask says.
        memory_mask: Of the attention to the whole memory.

    Returns:
        A new array [B, T, E], this rank's positions.

    Raises:
        TypeError, ValueError: As in `encoder`.
    """
    (part,) = compare_parts("decoder", parameters, ranks, configuration, lambda: [Given("", x, dropout, memory=memory)])
    parameters = sum_gradients(part.members, parameters)
    return compute_decoder_part(parameters, x, memory, part, ranks, configuration, mask, memory_mask, dropout)


def transformer(
    parameters: Transformer,
    source: Float[torch.Tensor, "B S E"] | Integer[torch.Tensor, "B S"],
    target: Float[torch.Tensor, "B T E"] | Integer[torch.Tensor, "B T"],
    *,
    configuration: Configuration,
    source_mask: Mask | Bool[torch.Tensor, "..."] | None = None,
    target_mask: Mask | Bool[torch.Tensor, "..."] | None = None,
    memory_mask: Mask | Bool[torch.Tensor, "..."] | None = None,
    dropout: TransformerDropout = TransformerDropout(),
    ranks: Ranks,
) -> Float[torch.Tensor, "B T N"]:
    """Compute this rank's positions of `transformer` of the whole (DIST-7).

    Args:
        parameters, configuration, ranks: As in `encoder`.
        source: [B, S] tokens, this rank's part, or [B, S, E] where the parameters have no embedding.
        target: [B, T] tokens, this rank's part, or [B, T, E] where the parameters have no embedding.
        source_mask, target_mask, memory_mask: As in `transformer`, of the whole.
        dropout: As in `transformer`, of this rank's positions; none of attention's weights.

    Returns:
        A new array [B, T, N], this rank's positions; [B, T, E] where there is no output layer.

    Raises:
        TypeError, ValueError: As in `encoder`.
    """

    def list_given() -> list[Given]:
        checks.sites(dropout, TransformerDropout)
        return [Given("encoder", source, dropout.encoder), Given("decoder", target, dropout.decoder)]

    source_part, part = compare_parts("transformer", parameters, ranks, configuration, list_given)
    parameters = sum_gradients(part.members, parameters)
    memory, padding = compute_encoder_part(
        parameters.encoder, source, source_part, ranks, configuration, source_mask, None, dropout.encoder
    )
    memory_mask = both(memory_mask, padding)
    x = compute_decoder_part(
        parameters.decoder, target, memory, part, ranks, configuration, target_mask, memory_mask, dropout.decoder
    )
    return x if parameters.output is None else output_layer(parameters.output, x, configuration)


def language_model(
    parameters: LanguageModel,
    tokens: Integer[torch.Tensor, "B T"],
    *,
    configuration: Configuration,
    mask: Mask | Bool[torch.Tensor, "..."] | None = None,
    dropout: StackDropout = StackDropout(),
    ranks: Ranks,
) -> Float[torch.Tensor, "B T N"]:
    """Compute this rank's positions of `language_model` of the whole (DIST-7).

    Args:
        parameters, configuration, dropout, ranks: As in `encoder`.
        tokens: [B, T], this rank's part.
        mask: As in `decoder`, of the whole.

    Returns:
        A new array [B, T, N], this rank's positions.

    Raises:
        TypeError, ValueError: As in `encoder`.
    """
    (part,) = compare_parts(
        "language_model", parameters, ranks, configuration, lambda: [Given("decoder", tokens, dropout)]
    )
    parameters = sum_gradients(part.members, parameters)
    x = compute_decoder_part(parameters.decoder, tokens, None, part, ranks, configuration, mask, None, dropout)
    return output_layer(parameters.output, x, configuration)


# --- a part of a stack ------------------------------------------------------------------------------------------------


def compute_encoder_part(
    parameters: Encoder,
    x: torch.Tensor,
    part: Part,
    ranks: Ranks,
    configuration: Configuration,
    mask: Any,
    token_types: torch.Tensor | None,
    dropout: StackDropout,
) -> tuple[torch.Tensor, Any]:
    """This rank's positions, and the mask of the whole source's padding."""
    padding = None
    if parameters.embedding is not None:
        tokens = part.gather(x)
        padding = padding_mask(tokens, configuration.source_padding)
        x = embed_part(parameters.embedding, x, tokens, token_types, part, configuration)
    x = drop(x, dropout.embedding)
    attentions: Any = [block.attention for block in parameters.blocks]
    options = {"mask": both(mask, padding)}
    x = apply_blocks(encoder_block, attentions, parameters, x, part, ranks, configuration, dropout, **options)
    return x, padding


def compute_decoder_part(
    parameters: Decoder,
    x: torch.Tensor,
    memory: torch.Tensor | None,
    part: Part,
    ranks: Ranks,
    configuration: Configuration,
    mask: Any,
    memory_mask: Any,
    dropout: StackDropout,
) -> torch.Tensor:
    """This rank's positions."""
    if parameters.embedding is not None:
        tokens = part.gather(x)
        mask = both(mask, target_mask(tokens, configuration))
        x = embed_part(parameters.embedding, x, tokens, None, part, configuration)
    elif configuration.target_mask != "none":
        mask = both(mask, Causal())
    x = drop(x, dropout.embedding)
    options = {"memory": memory, "mask": mask, "memory_mask": memory_mask}
    attentions: Any = [block.self_attention for block in parameters.blocks]
    return apply_blocks(decoder_block, attentions, parameters, x, part, ranks, configuration, dropout, **options)


def apply_blocks(
    apply: Callable[..., Any],
    attentions: list[Any],
    parameters: Encoder | Decoder,
    x: torch.Tensor,
    part: Part,
    ranks: Ranks,
    configuration: Configuration,
    dropout: StackDropout,
    **options: Any,
) -> torch.Tensor:
    """Apply every block to this rank's positions, and the last norm.

    apply: `encoder_block` or `decoder_block`, which takes the options. attentions: the self-attention of each block,
    for which rotations are made here.
    """
    options |= {"configuration": configuration, "attention_function": ranks}
    options["bias"] = bias_of_part(parameters, part, configuration)
    blocks: Any = parameters.blocks
    layers = configuration.layers(len(blocks))
    no_dropout = EncoderBlockDropout() if isinstance(parameters, Encoder) else DecoderBlockDropout()
    sites = dropout.blocks or [no_dropout] * len(blocks)
    rotations = rotations_of(attentions, layers, x, configuration, part.positions(x.device), part.length)
    for block, layer, rotation, dropped in zip(blocks, layers, rotations, sites, strict=True):
        x = apply(block, x, layer=layer, rotation=rotation, dropout=dropped, **options)
    return normalize_if(parameters.norm, x, configuration)


def embed_part(
    parameters: Any,
    own: torch.Tensor,
    tokens: torch.Tensor,
    token_types: torch.Tensor | None,
    part: Part,
    configuration: Configuration,
) -> torch.Tensor:
    """What `embed` gives for this rank's tokens; every rank checks those of the whole, so that all raise one error."""
    checks.structure("embedding", parameters, Embedding)
    check_rows(parameters.tokens, tokens, "tokens")
    if token_types is not None and parameters.token_types is not None:
        check_rows(parameters.token_types, part.gather(token_types), "token_types")
    if configuration.positions == "after_padding":
        assert configuration.position_padding is not None  # a Configuration sees to it
        positions = positions_after_padding(tokens, configuration.position_padding)
        check_rows(parameters.positions, positions, "positions after padding")
        others = replace(configuration, positions="none", position_padding=None)
        x = embed(parameters._replace(positions=None, norm=None), own, configuration=others, token_types=token_types)
        x = add(x, embedding(parameters.positions, positions[:, part.positions(own.device)]))
        return normalize_if(parameters.norm, x, configuration)
    if configuration.positions == "learned":
        checks.learned_positions(parameters.positions, part.length, 0)
    rows = []
    for here, there in places_of(part.own):
        types = None if token_types is None else token_types[:, here]
        piece = own[:, here]
        rows.append(embed(parameters, piece, configuration=configuration, token_types=types, offset=there.start))
    return torch.cat(rows, dim=1)


def bias_of_part(parameters: Encoder | Decoder, part: Part, configuration: Configuration) -> Any:
    """The rows of `position_bias` for this rank's queries."""
    if parameters.relative_positions is None:
        return None
    sizes = [(there.stop - there.start, part.length, there.start) for _, there in places_of(part.own)]
    return torch.cat([position_bias(parameters, configuration, *numbers) for numbers in sizes], dim=-2)


# --- one call of all ranks --------------------------------------------------------------------------------------------


class Given(NamedTuple):
    """A sequence of which a call gives this rank's part, and what belongs to it. stack: its field in the parameters."""

    stack: str
    x: torch.Tensor
    dropout: StackDropout
    token_types: torch.Tensor | None = None
    memory: torch.Tensor | None = None


def compare_parts(
    function: str, parameters: Any, ranks: Ranks, configuration: Configuration, list_given: Callable[[], list[Given]]
) -> list[Part]:
    """Compare the calls of all ranks, so that a wrong one is the same error everywhere, and tell what each rank has."""
    members = members_of(ranks.group)

    def describe() -> tuple[dict[str, Any], list[int]]:
        one_of("layout", ranks.layout, LAYOUTS)
        one_of("scheme", ranks.scheme, tuple(SCHEMES))
        checks.structure("parameters", parameters, KINDS[function])
        named = leaves(parameters)
        options: Any = {"the function": function, "ranks": repr(ranks[1:])}
        options |= {"configuration": repr(configuration), "the number of parameters": len(named)}
        options |= {f"the name of parameter {i}": name for i, name in enumerate(named)}
        for name, array in named.items():
            options[f"parameters{name}"] = dtype_name(array), [*array.shape]
            options[f"whether parameters{name} wants a gradient"] = array.requires_grad
        given = list_given()
        for stack, x, dropout, token_types, memory in given:
            own, name = getattr(parameters, stack) if stack else parameters, stack or "x"
            checks.stack(own, KINDS[stack or function], x, dropout, token_types, memory)
            checks.model_over_ranks(own, configuration, x, dropout, token_types)
            for part, array in ((name, x), ("token_types", token_types), ("memory", memory)):
                options[f"the dtype of {part}"] = None if array is None else dtype_name(array)
                shape = None if array is None else [array.shape[0], *array.shape[2:]]
                options[f"the shape of {part} without its length"] = shape
        return options, [one.x.shape[1] for one in given]

    lengths = zip(*(lengths for _, lengths in compare_calls(members, describe)), strict=True)
    return [Part(members, pieces_of_lengths("x", of_ranks, ranks.layout)) for of_ranks in lengths]


def sum_gradients(members: Members, parameters: Any) -> Any:
    """The same parameters, whose gradients will be sums over ranks; those of sinks are already (DIST-1)."""
    if members.ranks == 1:
        return parameters
    named = leaves(parameters)
    summed = [name for name, array in named.items() if array.requires_grad and not name.endswith(".sinks")]
    if not summed:
        return parameters
    arrays = dict(zip(summed, SumGradients.apply(members, *(named[name] for name in summed)), strict=True))
    in_order = iter([arrays.get(name, array) for name, array in named.items()])
    return mapped(lambda _: next(in_order), parameters)


class SumGradients(torch.autograd.Function):
    """Arrays that are the same on every rank. The backward pass sums their gradients, in one message for each dtype."""

    @staticmethod
    def forward(ctx: Any, members: Members, *arrays: torch.Tensor) -> Any:
        ctx.members = members
        return tuple(array.view_as(array) for array in arrays)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[Any, ...]:
        wide = [widen(gradient) for gradient in gradients]
        sums: dict[int, torch.Tensor] = {}
        for dtype in dict.fromkeys(array.dtype for array in wide):
            places = [i for i, array in enumerate(wide) if array.dtype == dtype]
            numbers = sum_over_ranks(ctx.members, torch.cat([wide[i].reshape(-1) for i in places]))
            sums |= dict(zip(places, numbers.split([wide[i].numel() for i in places]), strict=True))
        return None, *(sums[i].view_as(array).to(array.dtype) for i, array in enumerate(gradients))
