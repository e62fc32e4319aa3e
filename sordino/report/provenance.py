"""Says where a run comes from and what it was made with: engine, versions, digests, seals."""

from __future__ import annotations

from sordino.protocol.views import UNIT_IN_WORDS
from sordino.report.number_formats import format_bytes, format_duration
from sordino.report.phrasing import describe_noise, describe_protocol
from sordino.report.run_summary import RunSummary, has_public_records

# Whoever knows all records but one can try every value of that one.
DIGEST_REVEALS = "a guess of one private record could be checked against it"
# Versions of software that a run notes.
NOTED_VERSIONS = ("sordino", "python", "torch")


def list_provenance(summary: RunSummary) -> list[tuple[str, str]]:
    """Lists where the run comes from, and what it was made with.

    Args:
        summary: Summary of the run.

    Returns:
        Pairs of a word and a text.
    """
    run = summary.run
    facts = run.facts
    records = f"{sum(run.sizes):,} training records"
    unit = UNIT_IN_WORDS[summary.headline.unit]
    seed = str(run.protocol.seed)
    # A secure run draws neither noise nor participants from its seed, and showing it would mislead.
    if run.protocol.noise.secure:
        seed = "from the operating system for noise and draws"
    device = facts.get("device", "cpu")
    versions = ", ".join(f"{name} {facts[name]}" for name in NOTED_VERSIONS if name in facts)
    seconds = format_duration(float(run.metrics["seconds"].sum()))
    span = f"{facts.get('started', '?')} to {facts.get('ended', 'now')}"
    return [
        ("Federation", describe_protocol(run.protocol)),
        ("Records", f"{records}; unit of the headline: {unit}"),
        ("Noise", f"{describe_noise(run.protocol)}; {facts['noise']}"),
        ("Seed", seed),
        ("Assumptions", describe_assumptions(summary)),
        ("Engine", f"{facts['engine']}; workers: {facts['workers']}; device: {device}"),
        ("Versions", versions or "unknown"),
        ("Generator", str(facts.get("generator", "unknown"))),
        ("Time", f"{span}; {seconds} of training"),
        ("Traffic", describe_traffic(summary)),
        ("Parameters", f"{facts['parameters']:,}"),
        ("Ledger", describe_ledger(summary)),
        ("Seal", describe_seal(summary)),
        ("Data digest", describe_data_digest(summary)),
        ("Model digest", str(facts.get("model_digest", "unknown"))),
        ("Folder", str(run.folder)),
    ]


def describe_assumptions(summary: RunSummary) -> str:
    """Says which assumptions were vouched for, and which are enforced.

    Args:
        summary: Summary of the run.
    """
    texts = sorted(
        {
            text
            for guarantees in summary.guarantees.values()
            for guarantee in guarantees
            for text in guarantee.assumptions
        }
    )
    diameter = summary.run.protocol.assumptions.diameter
    if diameter is not None:
        texts.append(f"enforced: models stay in a ball of diameter {diameter:g}")
    return "; ".join(texts) or "none"


def describe_traffic(summary: RunSummary) -> str:
    """Says how much was sent.

    Args:
        summary: Summary of the run.
    """
    # The bytes divided by the size of a model are the number of participants.
    if summary.withheld.draw:
        return "left out: it reveals how many took part"
    metrics = summary.run.metrics
    up = format_bytes(float(metrics["bytes_up"].sum()))
    down = format_bytes(float(metrics["bytes_down"].sum()))
    return f"{up} up, {down} down"


def describe_ledger(summary: RunSummary) -> str:
    """Says how many rounds the ledger charged, and its digest.

    Args:
        summary: Summary of the run.
    """
    digest = f"digest {summary.ledger_digest}"
    if summary.withheld:
        digest = (
            "its digest is left out, since a guess of what is withheld could be checked against it"
        )
    elif not summary.ledger_digest:
        digest = f"its digest is left out, since {DIGEST_REVEALS}"
    return f"{len(summary.run.rounds_paid):,} rounds charged; {digest}"


def describe_data_digest(summary: RunSummary) -> str:
    """Returns the digest of the data, or says why it is left out.

    Args:
        summary: Summary of the run.
    """
    if not has_public_records(summary.run.protocol):
        return f"left out, since {DIGEST_REVEALS}; the owner has it (run.json)"
    return str(summary.run.facts.get("data_digest", "unknown"))


def describe_seal(summary: RunSummary) -> str:
    """Says whether changes of the run's folder would be noticed, and which keys have signed it.

    Args:
        summary: Summary of the run.
    """
    if not summary.sealed:
        return (
            "none: the run was written before there were seals, "
            "and a change of its files leaves no trace"
        )
    if not summary.signers:
        return "sealed, not signed: rewriting the whole folder leaves no trace"
    keys = ", ".join(summary.signers)
    return f"sealed and signed by {keys}; sordino verify checks it against a key that you know"
