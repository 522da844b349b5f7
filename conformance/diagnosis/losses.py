"""Known mistakes of losses."""

from conformance.diagnosis.matching import Mistake

CROSS_ENTROPY: tuple[Mistake, ...] = ()
NLL: tuple[Mistake, ...] = ()
