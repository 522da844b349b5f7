"""The dialects' pages: what differs, what that changes, where names go, and that the three agree."""

from __future__ import annotations

import importlib
import inspect
import re
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import reference_numpy
from conformance.side_by_side.operations import OPERATIONS
from specification import dialects as known
from specification.checkpoints import flatten
from specification.configuration import AttentionLayer, Configuration
from specification.rotary import Rotary, YarnScaling
from study import dialect_pages, dialect_texts, dialects, site
from study.checkpoints import drawn, small
from study.correspondence import Correspondence, correspondence, how, lines, numbered
from tests.support import browser

chromium = browser.chromium
NAMES = list(small())


@pytest.fixture(autouse=True)
def fresh() -> Any:
    """Nothing that another test has computed with a fault in it."""
    yield
    for cached in (dialects.studied, dialects.agreement, dialect_texts.option_texts):
        cached.cache_clear()


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("dialects")
    for name, text in dialect_pages.rendered(site.environment("source/"), frameworks=False).items():
        (out / f"{name}.html").write_text(text)
    return out


def page(built: Path, dialect: str) -> str:
    return (built / f"{dialect_pages.page_of(dialect)}.html").read_text()


# --- what differs -----------------------------------------------------------------------------------------------------


def test_there_is_a_page_for_each_dialect(built: Path) -> None:
    assert set(NAMES) == set(known.DIALECTS)
    assert {path.stem for path in built.iterdir()} == {"dialects", *map(dialect_pages.page_of, NAMES)}


@pytest.mark.parametrize("dialect", NAMES)
def test_all_that_differs_is_told(dialect: str, built: Path) -> None:
    one = small()[dialect]
    _, configuration = known.read(dialect, drawn(one.entries), **one.hyperparameters)
    defaults = asdict(Configuration(configuration.num_heads))
    expected = [name for name, value in asdict(configuration).items() if value != defaults[name]]
    assert [option.name for option in dialects.differing(configuration)] == expected
    assert re.findall(r'id="option-(\w+)"', page(built, dialect)) == expected


def test_a_choice_that_changes_is_told_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    record = known.DIALECTS["dawn"]
    variant = record.described

    def scaled(*, num_heads: int) -> Configuration:
        return replace(variant.configuration(num_heads=num_heads), scale="model_width")

    dialects.studied.cache_clear()
    before = dialects.studied("dawn").options
    dialects.studied.cache_clear()
    changed = replace(record, variants=(replace(variant, configuration=scaled),))
    monkeypatch.setitem(known.DIALECTS, "dawn", changed)
    after = dialects.studied("dawn")
    assert set(after.options) - set(before) == {dialects.Option("scale", "model_width", "head_width")}
    assert after.alone["scale"].largest > 0


def test_every_option_has_a_text_and_a_page() -> None:
    options = {field.name for field in fields(Configuration)} - {"num_heads"}
    assert set(dialect_pages.PAGES) == options
    assert options <= set(dialect_texts.option_texts())
    for norm, told in (("rms_norm", "mean square"), ("standard_deviation_norm", "unbiased deviation")):
        configuration = Configuration(num_heads=1, norm=norm)
        assert told in dialect_texts.option_text("norm", configuration)
        assert ("outside the root" in dialect_texts.option_text("norm_eps", configuration)) == (norm[0] == "s")
    assert set(dialect_pages.PAGES.values()) <= {one.name for one in OPERATIONS}


# --- what it changes --------------------------------------------------------------------------------------------------


def model(dialect: str, **options: Any) -> reference_numpy.Model:
    """The small model in float64, with other options."""
    one = small()[dialect]
    loaded = reference_numpy.load(dialect, drawn(one.entries), **one.hyperparameters)
    return reference_numpy.Model(dialects.widen_parameters(loaded.parameters), replace(loaded.configuration, **options))


@pytest.mark.parametrize(
    ("dialect", "options"),
    [("notebook-scratch", {"scale": "head_width"}), ("prenorm-blog", {"norm": "layer_norm"}),
     ("gpt2", {"norm_order": "post"}), ("imdb-classifier", {"pooling": "mean"})],
)  # fmt: skip
def test_changes_are_those_of_the_models(dialect: str, options: dict[str, str]) -> None:
    one, (name,) = small()[dialect], options
    inputs = tuple(one.inputs.values())
    change = model(dialect)(*inputs, **one.options) - model(dialect, **options)(*inputs, **one.options)
    effect = dialects.studied(dialect).alone[name]
    assert np.array_equal(effect.change, change)
    assert effect.largest == np.abs(change).max() > 0


def test_all_at_once_is_the_definition_with_its_defaults() -> None:
    one, found = small()["dawn"], dialects.studied("dawn")
    plain = reference_numpy.Model(found.parameters, Configuration(found.configuration.num_heads))
    assert np.array_equal(found.together.change, found.output - plain(*one.inputs.values()))


def test_a_fault_in_the_definition_changes_the_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    before = dialects.studied("notebook-scratch").alone["scale"].largest
    dialects.studied.cache_clear()
    blocks = importlib.import_module("reference_numpy.blocks")
    options = blocks.attention_options
    monkeypatch.setattr(blocks, "attention_options", lambda *given: options(*given) | {"scale": None})
    after = dialects.studied("notebook-scratch")
    assert before > 0
    assert after.alone["scale"].largest == 0


def test_what_cannot_be_switched_says_why(built: Path) -> None:
    effect = dialects.studied("pytorch").alone["positions"]
    assert effect.change is None
    assert "reads embeddings" in effect.without
    assert effect.without in page(built, "pytorch")
    assert dialects.studied("pytorch").together.change is not None
    assert dialects.hindrance(model("dawn"), dialects.Option("positions", "none", "sinusoidal")) == ""


def test_options_that_a_model_does_not_look_at(built: Path) -> None:
    assert "target_padding" not in dialects.studied("notebook-scratch").asked
    assert "target_padding" in dialects.studied("dawn").asked
    looked_at = {"num_heads", "scale", "softcap", "empty_rows", "attention_layers"}
    assert dialects.studied("transformer101").asked == looked_at
    assert "this model does not use it" in page(built, "notebook-scratch")
    assert "this model does not use it" not in page(built, "dawn")


def test_separate_heads_are_the_same_function() -> None:
    found = dialects.studied("transformer101")
    assert found.fused.largest == 0
    assert dialects.studied("dawn").fused is None


# --- names ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dialect", NAMES)
def test_every_entry_goes_somewhere(dialect: str) -> None:
    one = small()[dialect]
    found = correspondence(dialect)
    assert list(dict.fromkeys(line.theirs for line in found)) == list(one.entries)
    parameters, _ = known.read(dialect, numbered(one.entries), **one.hyperparameters)
    arrays = set(flatten(parameters))
    assert {line.ours for line in found} - {""} == arrays
    unread = {line.theirs for line in found if not line.ours}
    record = known.DIALECTS[dialect]
    assert unread == {(*record.prefixes, "")[0] + name for name in record.example.unread}


def test_where_some_entries_go() -> None:
    found = {(line.theirs, line.ours): line.how for line in correspondence("gpt2")}
    assert found["transformer.wte.weight", "output.weight"] == "turned"
    assert found["transformer.h.0.attn.c_attn.weight", "decoder.blocks.0.self_attention.key.weight"] == "second third"
    blog = {line.theirs: line for line in lines(correspondence("prenorm-blog"))}
    assert blog["out.{weight, bias}"].how == "weight turned"
    assert blog["encoder.norm.{alpha, bias}"].ours == "encoder.norm.{weight, bias}"


def test_entries_that_not_every_checkpoint_has(built: Path) -> None:
    assert dialect_texts.optional("llama") == (
        [],
        ["*self_attn.?_proj.bias", "*mlp.*_proj.bias", "lm_head.weight"],
    )
    assert dialect_texts.optional("vit") == (["*attention.attention.*.bias"], [])
    assert "<dd>no, unless attention_bias is true in config.json</dd>" in page(built, "llama")
    assert "<p>Some checkpoints also have <code>*self_attn.?_proj.bias</code>" in page(built, "llama")
    assert "<p>Not every checkpoint has <code>*attention.attention.*.bias</code>.</p>" in page(built, "vit")
    assert "<dd>yes</dd>" in page(built, "qwen2")
    assert dialect_texts.optional("qwen2") == ([], ["lm_head.weight"])


def test_names_that_are_exchanged_show(monkeypatch: pytest.MonkeyPatch) -> None:
    record = known.DIALECTS["dawn"]
    other = {"mha.W_q": "mha.W_k", "mha.W_k": "mha.W_q"}
    exchanged = tuple(
        row._replace(theirs=re.sub(r"mha\.W_[qk]", lambda found: other[found[0]], row.theirs))
        for row in record.described.table
    )
    monkeypatch.setitem(known.DIALECTS, "dawn", replace(record, variants=(replace(record.described, table=exchanged),)))
    assert Correspondence("encs.0.mha.W_q.weight", "encoder.blocks.0.attention.key.weight", "turned") in correspondence(
        "dawn"
    )


def test_an_entry_that_is_made_up_is_refused() -> None:
    with pytest.raises(ValueError, match="in no known way"):
        how(np.arange(6.0).reshape(2, 3), np.arange(6.0).reshape(2, 3) * 2)


# --- agreement --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dialect", ["dawn", "bert"])
def test_the_three_agree(dialect: str) -> None:
    found = dialects.agreement(dialect)
    assert set(found.errors) == {"reference_numpy", "torch_impl", "jax_impl"}
    assert max(found.errors.values()) <= 1
    assert 0 < found.apart <= 1


def test_a_fault_in_a_port_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    heads = importlib.import_module("torch_impl.multi_head_attention")
    right = heads.linear
    monkeypatch.setattr(heads, "linear", lambda parameters, x: 1.01 * right(parameters, x))
    found = dialects.agreement("transformer101")
    assert found.errors["torch_impl"] > 1
    assert found.errors["jax_impl"] <= 1 < found.apart


def test_a_missing_framework_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dialects, "missing", lambda: ["torch_impl"])
    monkeypatch.setattr(dialect_pages, "missing", lambda: ["torch_impl"])
    monkeypatch.setattr(dialect_pages, "small", lambda: {"transformer101": small()["transformer101"]})
    assert set(dialects.agreement("transformer101").errors) == {"reference_numpy", "jax_impl"}
    text = dialect_pages.rendered(site.environment(""), frameworks=True)["dialect-transformer101"]
    assert "PyTorch is not installed, and skipped. <code>make study</code>" in text


def test_a_page_without_agreement_says_so(built: Path) -> None:
    assert "The packages were not run when this page was made." in page(built, "dawn")


# --- texts ------------------------------------------------------------------------------------------------------------


def test_what_the_tutorials_do_is_told(built: Path) -> None:
    for dialect, record in known.DIALECTS.items():
        text = page(built, dialect)
        assert ("What the tutorial's text does" in text) == (record.tutorial is not None)
        for told in record.tutorial.departures.values() if record.tutorial else ():
            assert f"<dd>{told}</dd>" in text


def test_the_line_that_loads_is_the_one_that_was_run() -> None:
    assert dialect_texts.call("dawn") == ('load("dawn", "model.safetensors", num_heads=2)', "model(source, target)")
    assert dialect_texts.call("bert")[1] == "model(tokens, key_padding=key_padding, token_types=token_types)"


def test_heat_maps_are_shaded_by_size() -> None:
    ((row,),) = dialect_pages.heat(np.array([[0.5, -1.0, 0.0]]))
    assert [cell.shade for cell in row] == [0.5, -1.0, 0.0]
    assert [cell.text for cell in row] == ["0.5", "\N{MINUS SIGN}1", "0"]
    assert dialect_pages.heat(np.zeros((1, 2)))[0][0][0].shade == 0
    assert dialect_pages.heat(np.array([[3]]))[0][0][0].shade == 0


def test_choices_stand_beside_each_other(built: Path) -> None:
    text = (built / "dialects.html").read_text()
    for marked in ("<mark>model_width</mark>", "<mark>causal and real queries</mark>", "<mark>1e-12</mark>"):
        assert marked in text
    assert "<mark>head_width</mark>" not in text
    assert "<mark>0</mark> <small>not used</small>" in text


def test_no_line_begins_with_a_comma(built: Path) -> None:
    """Where code is set as a box, a line may end right after it; the comma belongs to the box."""
    for dialect in NAMES:
        takes = re.findall(r'<p class="how takes">(.*?)</p>', page(built, dialect), re.DOTALL)[0]
        arguments = dialect_texts.hyperparameters(dialect)
        assert len(re.findall(r"<span><code>.*?</code>[,.]</span>", takes)) == len(arguments)


def test_layers_of_attention_are_told_in_words(built: Path) -> None:
    """Arguments are code, without the fields that have their defaults."""
    text = page(built, "gpt_oss")
    words = "rotation with base 150,000, frequencies by YarnScaling, a window of 2 keys before and 0 after"
    assert f"</code></a> {words}; default: no rotation, no window</h3>" in text
    assert f"<mark>{words}</mark>" in (built / "dialects.html").read_text()
    assert "attention_layers=(AttentionLayer(rotary=Rotary()),)" in page(built, "llama")
    assert not [name for name in NAMES if "=None, rotary" in page(built, name)]


@pytest.mark.parametrize("dialect", NAMES)
def test_arguments_are_written_as_python_reads_them(dialect: str) -> None:
    names = {"AttentionLayer": AttentionLayer, "Rotary": Rotary, "YarnScaling": YarnScaling}
    for default in known.DIALECTS[dialect].hyperparameters.values():
        if default is not inspect.Parameter.empty:
            assert eval(dialect_texts.written(default), names) == default


# --- in a browser -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", browser.VIEWPORTS)
@pytest.mark.parametrize("name", ["dialects", "dialect-prenorm-blog", "dialect-pytorch"])
def test_fits_and_is_accessible(name: str, size: str, scheme: Any, chromium: Any, built: Path) -> None:
    with browser.opened(chromium, built / f"{name}.html", size=size, color_scheme=scheme) as watched:
        browser.sound(watched)
