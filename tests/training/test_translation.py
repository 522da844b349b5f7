"""Numbers in words: the sentences, a run that is broken off and resumed, translations, what the decoder looks at."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from reference_numpy.multi_head_attention import split_heads
from specification.checkpoints import flatten
from tests.support.helpers import PACKAGES
from tests.support.small_runs import command, contents, logged
from training import checkpoints, drawing
from training.packages import PACKAGES as THREE
from training.translation import data, translating
from training.translation.numbers import drawn_numbers, held_out, in_words, tokens
from training.translation.settings import Settings
from training.translation.vocabulary import END, PADDING, SPECIAL, START, Vocabularies, Vocabulary, batch_of

OPTIONS = ("--limit", 1000, "--numbers", 64, "--held-out", 50, "--repeats", 1, "--width", 16, "--inner", 32,
           "--heads", 2, "--depth", 1, "--batch", 16, "--warmup", 10, "--epochs", 2, "--seed", 3)  # fmt: skip
LAST = "step-0000008"


# --- sentences --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("language", ["en", "de", "fr", "es", "nl"])
def test_the_tokens_of_a_sentence_are_the_sentence(language: str) -> None:
    for number in [*range(130), 1000, 1001, 17_060, 21_345, 101_001, 999_999]:
        text = in_words(number, language)
        assert "".join(tokens(text, language)) == text


def test_german_is_split_into_its_parts() -> None:
    assert tokens("einundzwanzigtausendsechshundertsechzehn", "de") == [
        "ein", "und", "zwanzig", "tausend", "sechs", "hundert", "sechzehn",
    ]  # fmt: skip
    assert tokens("Twenty-one thousand, six", "en") == ["twenty", "-one", " thousand", ", six"]
    every = {token for number in range(2000) for token in tokens(in_words(number, "de"), "de")}
    assert len(every) == 24


def test_a_number_is_held_out_by_its_hash_and_no_other_is_drawn() -> None:
    rng = np.random.default_rng(0)
    training, test = (drawn_numbers(rng, 3000, test=kind, limit=10_000) for kind in (False, True))
    assert not set(training) & set(test)
    assert all(map(held_out, test))
    assert not any(map(held_out, training))
    assert len(set(training)) == len(training) == 3000
    assert len(test) == sum(map(held_out, range(10_000))) < 1100
    assert {len(str(number)) for number in training} == {1, 2, 3, 4}
    assert max(drawn_numbers(rng, 3000, test=False, limit=1234)) < 1234


def test_vocabularies_are_read_back_as_they_were(tmp_path: Path) -> None:
    one = Vocabularies(Vocabulary.of("en", ["two, one"]), Vocabulary.of("de", ["zweiundeins"]), 4)
    assert one.target.words == (*SPECIAL, "eins", "und", "zwei")
    assert one.target.encode("einsund") == [3, 4, END]
    assert one.target.decode([4, PADDING, 3, END, 5]) == "undeins"
    (tmp_path / "v.json").write_text(one.to_str())
    assert Vocabularies.read(tmp_path / "v.json") == one
    for text in ("{}", '{"longest": 3, "source": {"language": "en", "words": ["a"]}, "target": 1}', "no JSON"):
        (tmp_path / "v.json").write_text(text)
        with pytest.raises(ValueError, match=r"v\.json"):
            Vocabularies.read(tmp_path / "v.json")


def test_the_decoder_is_given_what_comes_before() -> None:
    batch = batch_of([[5, 6, END], [7, END]], [[3, END], [4, 5, END]], (4, 3))
    assert batch.inputs[0].tolist() == [[5, 6, END, PADDING], [7, END, PADDING, PADDING]]
    assert batch.inputs[1].tolist() == [[START, 3, PADDING], [START, 4, 5]]
    assert batch.targets.tolist() == [[3, END, PADDING], [4, 5, END]]


# --- a run ------------------------------------------------------------------------------------------------------------


def trained(out: Path, *more: Any, package: str = "reference_numpy") -> Any:
    return command("translation", "--out", out, "--package", package, *OPTIONS, *more)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of an undisturbed run of the definition."""
    out = tmp_path_factory.mktemp("translation") / "run"
    result = trained(out)
    assert result.exit_code == 0, result.output
    assert "64 numbers to train on, 50 held out, reference_numpy" in result.output
    return out


def test_a_run_learns_and_leaves_everything(whole: Path) -> None:
    losses = logged(whole, "loss")
    assert losses[-1] < losses[0] - 0.3
    assert logged(whole, "rate") == pytest.approx([16**-0.5 * n * 10**-1.5 for n in range(1, 9)])
    assert len(logged(whole, "held_out_accuracy")) == 2
    assert (whole / "curves.png").exists()
    for package in THREE.values():
        package.module.restore(whole / LAST / "model.safetensors")


def test_a_resumed_run_has_the_same_bits(whole: Path, tmp_path: Path) -> None:
    assert trained(tmp_path / "run", "--steps", 5).exit_code == 0
    assert trained(tmp_path / "run", "--resume").exit_code == 0
    assert contents(tmp_path / "run" / LAST) == contents(whole / LAST)
    assert (tmp_path / "run" / "log.jsonl").read_text() == (whole / "log.jsonl").read_text()


@pytest.mark.parametrize("package", ["torch_impl", pytest.param("jax_impl", marks=pytest.mark.slow)])
def test_the_ports_train_as_the_definition_does(tmp_path: Path, package: str) -> None:
    for name in (package, "reference_numpy"):
        trained(tmp_path / name, "--steps", 4, "--dtype", "float64", package=name)
    ours, exact = (logged(tmp_path / name, "loss") for name in (package, "reference_numpy"))
    assert ours == pytest.approx(exact, rel=1e-8)


@pytest.mark.slow
def test_numbers_that_were_held_out_are_translated_exactly(tmp_path: Path) -> None:
    """Below 10,000 in a minute; below a million takes some minutes more (docs/training.md)."""
    out = tmp_path / "run"
    result = command("translation", "--out", out, "--limit", 10_000, "--numbers", 6000, "--epochs", 8)
    assert result.exit_code == 0
    assert logged(out, "held_out_accuracy")[-1] >= 0.99
    text = "nine thousand, one hundred and seventy-six"
    found = [command("translate", out, text, "--beams", beams).output.strip() for beams in (1, 4)]
    assert found == ["neuntausendeinhundertsechsundsiebzig"] * 2


# --- translations -----------------------------------------------------------------------------------------------------


@pytest.mark.slow_where("jax_impl")
@pytest.mark.parametrize("package", PACKAGES[1:])
@pytest.mark.parametrize("beams", [1, 3])
def test_the_packages_translate_alike(whole: Path, package: str, beams: int) -> None:
    checkpoint = checkpoints.read(whole, data.TRANSLATION)
    texts = ["seventy-one", "Five", "sixty"]
    found, expected = (
        translating.from_checkpoint(THREE[name], checkpoint, texts, beams) for name in (package, "reference_numpy")
    )
    assert found == expected


def test_translate_on_the_command_line(whole: Path, tmp_path: Path) -> None:
    pictures = [tmp_path / "attention.svg", tmp_path / "attention.png"]
    printed = {
        command("translate", whole, "forty-two", "--package", "reference_numpy", "--attention", path).output
        for path in pictures
    }
    assert len(printed) == 1
    assert all(path.stat().st_size > 1000 for path in pictures)
    lines = command("translate", whole, "--package", "reference_numpy", input="forty-two\nsix\n").output.splitlines()
    assert lines[0] == printed.pop().strip()
    assert len(lines) == 2
    beside = command("translate", whole, "--package", "reference_numpy", input="forty-two\n\nsix\n")
    assert beside.exit_code == 2
    assert beside.stdout.splitlines() == [lines[0], "", lines[1]]
    assert "line 2: '' has no words" in beside.output


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("translate", "{run}", "forty-two apples"), "unknown word 'apples': the model translates numbers written out"),
        (("translate", "{run}", " "), "has no words"),
        (("translate", "{run}", "six", "--attention", "a.txt"), "a picture ends in one of"),
        (("classify", "{run}", "six"), "is no checkpoint of `reviews`: its model is a Transformer"),
        (("translation", "--out", "{out}", "--limit", "0"), "limit must be an integer of at least 1000, got 0"),
        (("translation", "--out", "{out}", "--heads", "3"), "width must be divisible by heads"),
        (("translation", "--out", "{out}", "--source", "klingon"), "source must be a language of num2words"),
        (("translation", "--out", "{run}", "--resume", "--width", "32"), "--resume: width was 16, and 32 is given"),
    ],
)
def test_wrong_input_is_refused(words: tuple[str, ...], message: str, whole: Path, tmp_path: Path) -> None:
    found = command(*(word.format(run=whole, out=tmp_path / "out") for word in words), "--package", "reference_numpy")
    assert found.exit_code == 2, found.output
    assert message in found.output


# --- what the decoder looks at ----------------------------------------------------------------------------------------


def test_cross_attention_is_what_the_decoder_block_uses(whole: Path) -> None:
    """Weights times values, through the projection, are what the definition's cross-attention gives."""
    from conformance.models.instrumentation import instrument_package
    from conformance.models.structures import widen_parameters
    from reference_numpy.multi_head_attention import concatenate_heads, linear

    checkpoint = checkpoints.read(whole, data.TRANSLATION)
    configuration = checkpoint.settings.task().configuration
    source, target = np.array([[4, 5, END, PADDING]]), np.array([[START, 6, 7]])
    [weights] = translating.cross_attention(checkpoint.parameters, configuration, source, target)
    assert weights.shape == (1, 2, 3, 4)
    np.testing.assert_allclose(weights.sum(axis=-1), 1, rtol=1e-12)
    assert not weights[..., 3].any()

    def visit(name: str, step: str, function: Any, arguments: Any, keywords: Any) -> Any:
        result = function(*arguments, **keywords)
        if name.endswith("cross_attention"):
            projections, _, memory = arguments[:3]
            values = split_heads(linear(projections.value, memory), 2)
            np.testing.assert_allclose(
                linear(projections.output, concatenate_heads(weights @ values)), result, rtol=1e-9, atol=1e-12
            )
        return result

    exact = widen_parameters(checkpoint.parameters)
    instrument_package("reference_numpy", exact, visit).transformer(exact, source, target, configuration=configuration)


# --- what is drawn ----------------------------------------------------------------------------------------------------


def test_weights_and_keep_masks_depend_on_the_seed_and_the_step_alone() -> None:
    from training.translation import drawing as own

    settings = Settings(width=16, inner=32, heads=2, depth=1, dropout=0.25, numbers=20, limit=1000)
    batch = data.prepare(settings).batch(np.arange(4))
    first, again, other = (own.dropout(settings, batch, step) for step in (5, 5, 6))
    kept = [flatten(one.encoder.embedding)["keep"] for one in (first, again, other)]
    assert (kept[0] == kept[1]).all()
    assert (kept[0] != kept[2]).any()
    assert 0.6 < kept[0].mean() < 0.9
    assert own.dropout(Settings(dropout=0.0), batch, 5) is None
    weights = own.initial_weights(settings, 30, 20)
    assert np.abs(weights.encoder.blocks[0].feed_forward.inner.weight).max() < np.sqrt(6 / (16 + 32))
    assert 0.2 < weights.encoder.embedding.tokens.std() < 0.3
    assert drawing.NUMBERS not in (drawing.WEIGHTS, drawing.ORDER, drawing.KEEP)
