"""How test cases are generated: Hypothesis strategies, special values, and the plan of sizes."""
