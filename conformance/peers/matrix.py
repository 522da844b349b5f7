"""Every peer's executor, and the table of what each of them does otherwise than the definition."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field, fields

from conformance.cases.declaration import split_names
from conformance.judge.options import EFFORTS
from conformance.judge.report import Report, report_of
from conformance.judge.trial import Progress, ignore_progress
from conformance.peers import PEERS
from conformance.peers.judging import DtypeRemark, PeerExecutor, runner_of
from conformance.peers.models import MODELS, ModelPeer
from conformance.peers.models.judging import judge_model
from conformance.peers.peer import Peer, installed_version
from conformance.ports.report import ModelReport


@dataclass(frozen=True)
class PeerReport(Report):
    """A report with the peer it is about.

    remarks: by rule, the dtypes in which it is broken. accepted: by rule, titles of the calls that it should
    refuse and does not.
    """

    peer: Peer
    remarks: dict[str, list[DtypeRemark]] = field(default_factory=dict)
    accepted: dict[str, list[str]] = field(default_factory=dict)


def matrix(
    effort: str = "default",
    seed: int = 0,
    only: Collection[str] = (),
    *,
    say: Callable[[str], None] = print,
    progress: Progress = ignore_progress,
) -> list[PeerReport | ModelReport]:
    """Judge every peer that can be judged here; one line is said of each, also of those that cannot.

    only: parts of names; a peer whose name has one of them is judged, also if it is slow. A whole name is that peer
    alone, although it has commas. say: where lines go.
    """
    return list(judge_peers(effort, seed, only, say=say, progress=progress))


def judge_peers(
    effort: str,
    seed: int,
    only: Collection[str] = (),
    *,
    say: Callable[[str], None] = print,
    progress: Progress = ignore_progress,
) -> Iterator[PeerReport | ModelReport]:
    """The reports of `matrix`, each as soon as it is made."""
    if effort not in EFFORTS:
        raise ValueError(f"effort must be one of {', '.join(EFFORTS)}, got {effort!r}")
    for peer in list(choose_peers(only, say)):
        report: PeerReport | ModelReport
        if isinstance(peer, ModelPeer):
            report = judge_model(peer, effort, seed, progress)
        else:
            report = judge_peer(peer, effort, seed, progress)
        say(f"{peer.name}: {len(report.violations)} divergences in {report.seconds:.0f} s")
        yield report


def split_parts(only: Collection[str]) -> list[str]:
    """Parts of names; what stands in a peer's name with its commas is one part."""
    items = [only] if isinstance(only, str) else only
    whole = {item for item in items if any(item in peer.name for peer in (*PEERS, *MODELS))}
    return [part for item in items for part in ([item] if item in whole else split_names(item))]


def choose_peers(only: Collection[str], say: Callable[[str], None]) -> Iterator[Peer]:
    peers = (*PEERS, *MODELS)
    chosen, names = [only] if isinstance(only, str) else only, {peer.name for peer in peers}
    parts = split_parts([part for part in chosen if part not in names])
    for peer in peers:
        named = peer.name in chosen or any(part in peer.name for part in parts)
        if only and not named:
            continue
        why = peer.absent or ("" if named else peer.slow)
        if why:
            say(f"{peer.name} is skipped: {why}")
        else:
            yield peer


def judge_peer(peer: Peer, effort: str, seed: int, progress: Progress = ignore_progress) -> PeerReport:
    """One peer's report, as `conformance.check` gives it, within what its path has parameters for."""
    start, runner = time.monotonic(), runner_of(peer)
    try:
        executor = PeerExecutor(runner, peer, EFFORTS[effort], seed, progress)
        executor.run()
    finally:
        runner.close()
    plain = report_of(peer.target, executor, effort, time.monotonic() - start)
    inherited = {f.name: getattr(plain, f.name) for f in fields(Report)}
    inherited["versions"] = plain.versions | {package: installed_version(package) for package in peer.packages}
    return PeerReport(**inherited, peer=peer, remarks=executor.remarks, accepted=executor.accepted)
