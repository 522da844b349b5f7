"""Checks on the arguments of latent attention (MLA-1, MLA-2)."""

from __future__ import annotations

from specification.arrays import Array
from specification.checks.arguments import described, flag, natural, refuse, structure
from specification.checks.rotary import rotary_fits
from specification.checks.shapes import arrays_of, declare, match
from specification.parameters import LatentAttention, Norm
from specification.rotary import Rotary

__all__ = ["latent_attention"]

TOKENS = declare({"x": 'Float[Array, "B T E"]', "positions": 'Integer[Array, "T"] | Integer[Array, "B T"] | None'})
QUERY = declare({"query": 'Projection[Linear, "E HQ"]'})
COMPRESSED_QUERY = declare(
    {
        "query_norm.weight": 'Wide[Array, "Cq"]',
        "query_down": 'Projection[Linear, "E Cq"]',
        "query": 'Projection[Linear, "Cq HQ"]',
    }
)
KEYS = declare({"key_value_norm.weight": 'Wide[Array, "C"]', "key_value_up": 'Projection[Linear, "C HDV"]'})
DOWN = declare({"key_value_down": 'Projection[Linear, "E CR"]'})
OUTPUT = declare({"output": 'Projection[Linear, "HV E_out"]'})


def latent_attention(
    parameters: LatentAttention,
    x: Array,
    num_heads: int,
    positions: Array | None,
    rotary: Rotary,
    length: int | None,
    absorbed: bool,
) -> None:
    """Check the arguments of latent attention, but for mask, scale and eps, which its steps check (MLA-1, MLA-2).

    `rotary.width` is R. The other sizes are read off the shapes.
    """
    structure("parameters", parameters, LatentAttention)
    natural("num_heads", num_heads, least=1)
    flag("absorbed", absorbed)
    if (parameters.query_down is None) != (parameters.query_norm is None):
        refuse("query_norm", "be there exactly if query_down is", described(parameters.query_norm))
    arrays = {"x": x, "positions": positions}
    for name in ("key_value_norm", "query_norm"):
        if (norm := getattr(parameters, name)) is not None:
            structure(name, norm, Norm)
            if norm.bias is not None:
                refuse(f"{name}.bias", "be None in latent attention", described(norm.bias))
            arrays[f"{name}.weight"] = norm.weight
    for name in ("query", "key_value_down", "key_value_up", "output", "query_down"):
        if (projection := getattr(parameters, name)) is not None:
            arrays |= arrays_of(name, projection)
    if parameters.key_value_up.bias is not None:
        refuse("key_value_up.bias", "be None in latent attention", described(parameters.key_value_up.bias))
    declared = TOKENS + (QUERY if parameters.query_down is None else COMPRESSED_QUERY) + KEYS
    sizes = match(declared, arrays)
    if sizes["HQ"] % num_heads != 0 or sizes["HQ"] == 0:
        refuse("query.weight", f"have columns that {num_heads} heads share equally", f"{sizes['HQ']} columns")
    width = sizes["HQ"] // num_heads
    rotated = rotary_fits(rotary, width, length, "rotary_width")
    if rotated == width:
        refuse("rotary_width", f"be below the head width {width}: some columns are not rotated", rotated)
    if sizes["HDV"] % num_heads != 0 or sizes["HDV"] // num_heads <= width - rotated:
        expected = f"have more than {width - rotated} columns for each of {num_heads} heads"
        refuse("key_value_up.weight", expected, f"{sizes['HDV']} columns")
    columns = sizes["HDV"] - num_heads * (width - rotated)
    match(declared + DOWN + OUTPUT, arrays, CR=sizes["C"] + rotated, HV=columns)
