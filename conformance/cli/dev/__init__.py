"""`conformance dev`: maintenance of the project, one command a file."""

from __future__ import annotations

import typer

from conformance.cli.dev import corpus, detection_probability, dialects, engines, peers, spec, tightness, variants

app = typer.Typer(no_args_is_help=True, rich_markup_mode="markdown", help="Tests of the judge, and generated files.")

app.command("peers")(peers.peers)
app.command("engines")(engines.engines)
app.command("variants")(variants.variants)
app.command("detection-probability")(detection_probability.detection_probability)
app.command("dialects")(dialects.dialects)
app.command("tightness")(tightness.tightness)
app.command("corpus")(corpus.corpus)
app.command("spec")(spec.spec)
