"""The rules of the specification, and one more that only a judge needs."""

from __future__ import annotations

from specification import RULES
from specification.rules import Rule

CONTRACT = Rule(
    "CALL",
    "contract",
    "The function takes the operation's arguments, returns its framework's arrays, in time, and prints nothing.",
)
JUDGED = {CONTRACT.id: CONTRACT} | RULES
STATE_RULE = "ATT-13"
"""The rule of what results must not depend on: earlier calls, chance, memory layouts."""
