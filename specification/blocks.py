"""Which norms a block has, by the order that its configuration names (BLK-1, BLK-3)."""

from __future__ import annotations

from specification.parameters import DecoderBlock, EncoderBlock


def misplaced_norms(block: EncoderBlock | DecoderBlock, norm_order: str) -> list[str]:
    """Say what a block has too little or too much for the order of its norms.

    Args:
        block: its parameters.
        norm_order: the configuration's.

    Returns:
        The end of a sentence for each problem.
    """
    problems = []
    there = {name: part is not None for name, part in block._asdict().items()}
    sublayers = [name for name in there if not name.endswith("norm") and there[name]]
    for name in sublayers:
        optional = norm_order == "pre" or (norm_order == "parallel" and name == "feed_forward")
        if not there[f"{name}_norm"] and not optional:
            problems.append(f"a block needs {name}_norm")
        if there.get(f"{name}_output_norm", False) != (norm_order == "around") and name != "cross_attention":
            needs = "needs" if norm_order == "around" else "has no"
            problems.append(f"a block {needs} {name}_output_norm")
    if there.get("cross_attention_norm") and not there["cross_attention"]:
        problems.append("a block without cross_attention has no cross_attention_norm")
    if there.get("cross_attention") and norm_order in ("around", "parallel"):
        problems.append("a block has no cross_attention")
    return problems
