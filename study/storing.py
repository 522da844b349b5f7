"""`python -m study.storing PATH...`: store the part of a result that the pages show, in study/results.

A report of the judge loses its replay data. A report of some rules, by `conformance run --only RULE`, joins the stored
run if both have the same seed, settings and versions. Each probe has a seed of its own, so its cases are those of a
whole run. A benchmark loses the single trials and the parts of intervals that no page shows: of a rate or a share it
keeps the median, and of a ratio not the level and count, which are those of the time.
Of training runs, which are folders, and of their report in lock-step, it keeps what is drawn, each beside the others.
Numbers keep six digits. `conformance compare`, and `python -m benchmarks compare` and `plot`, still read both.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from conformance.checks.levels import JUDGED, LEVELS, highest_profile, is_required
from conformance.reports.comparison import circumstances, compare_declarations, read_report
from conformance.timing.results.result import read as read_benchmark
from study.results import BENCHMARKS, CONFORMANCE, TRAINING
from study.training import SCHEMA
from training.lockstep.report import SCHEMA as LOCKSTEP

if TYPE_CHECKING:
    from training.checkpoints import Checkpoint

Result = dict[str, Any]
POINTS = 50
"""Of the curve of a training run."""
EXAMPLE = 123456
"""The number whose translation is shown."""
RATIO = ("median", "low", "high")
RATE = ("median",)
SHOWN = {
    "seconds": (*RATIO, "level", "n"), "flops_per_second": RATE, "bytes_per_second": RATE, "share": ("of", "median"),
    "peaks": (*RATIO, "level"),
}  # fmt: skip
"""What is kept of an interval, by the field that it stands in; of any other what is kept of a ratio."""


def stored_report(path: Path) -> Result:
    report = read_report(path)
    return report | {"subjects": [stored_subject(one) for one in report["subjects"]]}


def stored_subject(subject: Result) -> Result:
    """A subject without its replays."""
    violations = [without_replay(one) for one in subject["violations"]]
    causes = [one | {"violation": without_replay(one["violation"])} for one in subject.get("causes", [])]
    return subject | {"violations": violations, "causes": causes}


def joined(before: Result, after: Result) -> Result:
    """A stored report, with the rules of one that is newer. ValueError where the two were not judged alike."""
    unlike = circumstances(before, after)
    for old, new in zip(before["subjects"], after["subjects"], strict=False):
        unlike += [f"name: {old['name']} -> {new['name']}"] if old["name"] != new["name"] else lost(old, new)
    if len(before["subjects"]) != len(after["subjects"]):
        unlike.append("other implementations")
    unlike += [one["error"] for one in (before, after) if one["error"]]
    if unlike:
        raise ValueError(f"the report lacks rules of the stored run, and cannot join it: {'; '.join(unlike)}")
    subjects = [joined_subject(*pair) for pair in zip(before["subjects"], after["subjects"], strict=True)]
    newer = names_of(after)
    earlier = [(one, [rule for rule in one["rules"] if rule not in newer]) for one in before.get("joined", [])]
    told = [one | {"rules": rules} for one, rules in earlier if rules]
    return before | {
        "seconds": round(before["seconds"] + after["seconds"], 3),
        "conforms": all(one["conforms"] for one in subjects),
        "subjects": subjects,
        "joined": [*told, {"written": after["written"], "rules": newer}],
    }


def lost(before: Result, after: Result) -> list[str]:
    """What a newer declaration lacks of an older one. It may add features and conventions of newer rules."""
    unlike = compare_declarations(before, after)
    return [line for line in unlike if ": no " in line or (" -> " in line and " None -> " not in line)]


def joined_subject(before: Result, after: Result) -> Result:
    newer = [rule["rule"] for rule in after["rules"]]
    rules, violations = ([one for one in before[part] if one["rule"] not in newer] + after[part]
                         for part in ("rules", "violations"))  # fmt: skip
    causes = [one for one in before.get("causes", []) if one["violation"]["rule"] not in newer] + after["causes"]
    order = list(JUDGED)
    broken = {one["rule"]: one["level"] for one in violations}
    return after | {
        "conforms": not any(is_required(level, after["profile"]) for level in broken.values()),
        "kept": highest_profile(broken.values()),
        "levels": {level: [rule for rule in order if broken.get(rule) == level] for level in LEVELS},
        "rules": sorted(rules, key=lambda one: order.index(one["rule"])),
        "violations": sorted(violations, key=lambda one: order.index(one["rule"])),
        "causes": causes,
    }


def names_of(report: Result) -> list[str]:
    """The rules of a report, in the specification's order."""
    named = {rule["rule"] for subject in report["subjects"] for rule in subject["rules"]}
    return [rule for rule in JUDGED if rule in named]


def without_replay(violation: Result) -> Result:
    return violation | {"replay": None, "replay_file": None, "replay_command": None}


def stored_benchmark(path: Path) -> Result:
    return dict(lighter(read_benchmark(path)))


def lighter(value: object, name: str = "") -> Any:
    """name: the field that it stands in."""
    if name == "trials" and isinstance(value, list):
        return None
    if isinstance(value, float):
        return float(f"{value:.6g}")
    if isinstance(value, list):
        return [lighter(one) for one in value]
    if isinstance(value, dict):
        kept = SHOWN.get(name, RATIO) if "median" in value else value.keys()
        return {key: lighter(one, key) for key, one in value.items() if key in kept}
    return value


def stored_lockstep(path: Path) -> Result:
    try:
        report = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ValueError(f"{path} cannot be read: {error}") from error
    if not isinstance(report, dict) or report.get("schema") != LOCKSTEP:
        raise ValueError(f"{path} is no report of `python -m training lockstep`")
    return {"schema": SCHEMA, "lockstep": lighter(report)}


def stored_run(path: Path) -> Result:
    """A folder of `python -m training`."""
    from training import checkpoints, records
    from training.translation.data import TRANSLATION

    run = (checkpoints.newest(path) or path) / checkpoints.RUN
    told = checkpoints.told_by(run)
    kind = TRANSLATION if "target" in told["settings"] else checkpoints.REVIEWS
    checkpoint, log = checkpoints.read(path, kind), records.read(path / records.LOG)
    steps = [one for one in log if "loss" in one]
    found = {
        "package": checkpoint.package,
        "settings": told["settings"],
        "versions": told["versions"],
        "when": datetime.fromtimestamp(run.stat().st_mtime, UTC).strftime("%Y-%m-%d"),
        "training": [mean_of(group) for group in np.array_split(np.array(steps), min(POINTS, len(steps)))],
        "held_out": [
            [one["step"], one["epoch"], one["held_out_loss"], one["held_out_accuracy"]]
            for one in log
            if "held_out_loss" in one
        ],
    }
    found |= of_reviews(checkpoint) if kind is checkpoints.REVIEWS else of_translation(checkpoint)
    return {"schema": SCHEMA, kind.command: lighter(found)}


def mean_of(records: np.ndarray) -> list[float]:
    """The last step of some, and the means of their losses and accuracies."""
    return [records[-1]["step"], *(float(np.mean([one[name] for one in records])) for name in ("loss", "accuracy"))]


def of_reviews(checkpoint: Checkpoint) -> Result:
    """What naive Bayes reaches on the movie sentences. ValueError where the run had other texts."""
    from training import naive_bayes, review_data, reviews

    data = review_data.prepare(reviews.read(None), checkpoint.settings, checkpoint.vocabulary)
    if data.digest != checkpoint.data:
        raise ValueError("the run was trained on other texts than the movie sentences")
    training, held_out, entries = data.training, data.held_out, data.vocabulary.get_vocab_size()
    reached = naive_bayes.accuracy(training.texts, training.labels, held_out.texts, held_out.labels, entries)
    return {"baseline": reached}


def of_translation(checkpoint: Checkpoint) -> Result:
    """How many classes a token has; a translation, and what the last block of the decoder looks at meanwhile."""
    from training.packages import PACKAGES
    from training.translation import numbers, translating

    package, text = PACKAGES["reference_numpy"], numbers.in_words(EXAMPLE, checkpoint.settings.source)
    configuration = checkpoint.settings.task().configuration
    (translation,) = translating.translate(package, checkpoint.parameters, configuration, checkpoint.vocabulary, [text])
    weights, source, target = translating.looked_at(checkpoint, text, translation)
    seen = {"text": text, "translation": translation, "source": source, "target": target}
    attention = seen | {"weights": np.round(weights, 4).tolist()}
    return {"classes": len(checkpoint.vocabulary.target.words), "attention": attention}


KINDS: tuple[tuple[Path, Callable[[Path], Result]], ...] = (
    (TRAINING, stored_run), (CONFORMANCE, stored_report), (BENCHMARKS, stored_benchmark), (TRAINING, stored_lockstep),
)  # fmt: skip


def store(path: Path, folder: Path) -> Path:
    """The file that was written. ValueError for what is no result."""
    refusals = []
    for kind, read in KINDS:
        try:
            found = read(path)
        except ValueError as error:
            refusals.append(str(error))
            continue
        folder.mkdir(parents=True, exist_ok=True)
        target = folder / kind.name
        if kind == TRAINING and target.exists():
            found = json.loads(target.read_text(encoding="utf-8")) | found
        if (
            kind == CONFORMANCE
            and target.exists()
            and set(names_of(before := read_report(target))) - {*names_of(found)}
        ):
            found = joined(before, found)
        # A line for every case or subject, so that a change can be read.
        text = json.dumps(found, separators=(",", ":"), allow_nan=False)
        target.write_text(text.replace('{"name":', '\n{"name":') + "\n", encoding="utf-8")
        return target
    raise ValueError("; ".join(dict.fromkeys(refusals)))


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m study.storing", description="Store results for the pages.")
    parser.add_argument(
        "files", type=Path, nargs="+", help="results of conformance run or benchmarks, by --json; training"
    )
    parser.add_argument("--to", type=Path, default=CONFORMANCE.parent, help="the folder for the stored results")
    given = parser.parse_args()
    for path in given.files:
        try:
            target = store(path, given.to)
        except ValueError as error:
            parser.error(str(error))
        print(f"{target}: {target.stat().st_size / 1e3:.0f} kB")


if __name__ == "__main__":
    main()
