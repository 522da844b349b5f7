"""Cases of one's own sizes, as `--case` names them: "B=1, H=16, G=4, T=2048, D=64, causal"."""

from __future__ import annotations

from typing import Any

from conformance.timing.timed_case import Case, both_ways

LAYER_NORM = "layer norm"
SIZES = {"attention": ("B", "H", "G", "T", "Q", "K", "D"), "layer_norm": ("B", "T", "D")}
WORDS = ("dense", "causal", "lengths", LAYER_NORM)
NUMBERED = ("window", "segments")
WHAT = (
    "expected sizes B, H, G, T, Q, K, D and one of dense, causal, lengths, window=N, segments=N; or layer norm, B, T, D"
)


USUAL: dict[tuple[str, str], tuple[str, ...]] = {
    ("attention", "cpu"): ("T=256, causal", "B=4, T=256, lengths", "T=2048, causal", "Q=1, K=4096"),
    ("attention", "cuda"): (
        "B=2, H=16, T=1024, D=128, causal", "B=8, H=16, T=1024, D=128, lengths", "B=2, H=16, T=4096, D=128, causal",
        "B=8, H=16, Q=1, K=8192, D=128",
    ),
    ("layer_norm", "cpu"): ("layer norm, B=2, T=256, D=768", "layer norm, B=8, T=512, D=1024"),
    ("layer_norm", "cuda"): ("layer norm, B=2, T=1024, D=1024", "layer norm, B=8, T=4096, D=4096"),
}  # fmt: skip
"""By operation and device, small ones in the first half: a prompt, padded prompts, a long one, one step of decoding."""


def usual_cases(operation: str, device: str, quick: bool) -> list[Case]:
    """Return what a function is timed on where nobody names sizes; quick: the small ones alone."""
    usual = USUAL[operation, device]
    return [case for text in usual[: len(usual) // 2 if quick else None] for case in read_sizes(text, device)]


def read_sizes(text: str, device: str) -> tuple[Case, Case]:
    """Return the case that the text describes, and the same with its backward pass; ValueError says what is wrong.

    Sizes without a number are B=1, H=8, T=128, D=64; T stands for Q and K, and G is H. Values are as wide as keys. The
    dtype is that of most cases: float32 on a CPU, bfloat16 on a GPU.
    """
    numbers: dict[str, int] = {}
    words: list[str] = []
    try:
        for part in filter(None, map(str.strip, text.split(","))):
            name, equals, number = map(str.strip, part.partition("="))
            if name not in ((*SIZES["attention"], *NUMBERED) if equals else WORDS):
                raise ValueError(f"{part!r} is unknown")
            if equals and not (number.isdecimal() and int(number) > 0):
                raise ValueError(f"{name} must be a whole number above 0, got {number!r}")
            if name in numbers or (name in (*WORDS, *NUMBERED) and words):
                raise ValueError(f"{part!r} is one too many")
            numbers |= {name: int(number)} if equals else {}
            words += [name] if name in (*WORDS, *NUMBERED) else []
        if not numbers and not words:
            raise ValueError("it is empty")
        name = ", ".join(map(str.strip, text.strip(" ,").split(",")))
        return both_ways(case_of(name, numbers, words[0] if words else "dense", device))
    except ValueError as error:
        raise ValueError(f"--case {text!r}: {error}; {WHAT}") from None


def case_of(name: str, numbers: dict[str, int], kind: str, device: str) -> Case:
    operation = "layer_norm" if kind == LAYER_NORM else "attention"
    more = sorted({*numbers} - {*SIZES[operation], *NUMBERED})
    if more:
        raise ValueError(f"layer norm has no {', '.join(more)}")
    length, heads = numbers.get("T", 128), 1 if operation == "layer_norm" else numbers.get("H", 8)
    sizes: dict[str, Any] = {"Q": length, "K": length, "H": heads, "G": heads, "V": numbers.get("D", 64)}
    sizes |= {one: number for one, number in numbers.items() if one != "T"}
    if sizes["H"] % sizes["G"]:
        raise ValueError(f"H must be a multiple of G, got {sizes['H']} and {sizes['G']}")
    if kind in ("causal", *NUMBERED) and sizes["Q"] != sizes["K"]:
        raise ValueError(f"{kind} has as many queries as keys, got {sizes['Q']} and {sizes['K']}")
    if numbers.get("segments", 1) > sizes["K"]:
        raise ValueError(f"{numbers['segments']} segments of {sizes['K']} keys")
    kind = "dense" if operation == "layer_norm" else kind
    return Case(name, operation, kind=kind, dtype="bfloat16" if device == "cuda" else "float32", **sizes)
