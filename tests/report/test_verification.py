"""`sordino verify`: whole runs pass, every change is named, and what cannot be checked is said."""

import hashlib
import json
import re
import shutil
import stat
from functools import partial
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from sordino import Poisson, Run, UserError, resume, train
from sordino.cli.main import run as command
from sordino.federation.round_metrics import RoundMetrics
from sordino.federation.store.seals import digest_of, metrics_seal
from sordino.federation.store.signatures import read_private_key, sign_run, write_new_key
from sordino.report.verification import verify
from tests.support import ledger_bodies, rechain, toy_dataset, toy_protocol, unseal


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> Path:
    """A signed run with a report, and two keys."""
    root = tmp_path_factory.mktemp("verified")
    write_new_key(root / "mine.key")
    write_new_key(root / "other.key")
    train(
        toy_protocol(participation=Poisson(rate=0.6), rounds=5),
        data=toy_dataset(),
        model="logistic",
        folder=root / "run",
        workers=1,
        sign=root / "mine.key",
    )
    return root


@pytest.fixture
def root(made, tmp_path) -> Path:
    """A copy that a test may change."""
    return Path(shutil.copytree(made, tmp_path / "copy"))


def results(folder: Path, key: str | None = None) -> dict[str, str]:
    return {check.subject: check.result for check in verify(folder, key=key).checks}


def fingerprint(public: Path) -> str:
    """What a fingerprint is, worked out from the file's base64 text."""
    import base64

    body = "".join(public.read_text().splitlines()[1:-1])
    raw = base64.b64decode(body)[-32:]
    return "ed25519-" + hashlib.sha256(raw).hexdigest()[:32]


def change_json(path: Path, **changes: object) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def test_a_signed_run_that_nobody_changed_is_whole(root, capfd) -> None:
    assert command(["verify", str(root / "run"), "--key", str(root / "mine.key.pub")]) == 0
    out = capfd.readouterr().out
    assert "the requested key" in out.replace("\n", " ") or "requested" in out
    found = verify(root / "run")
    assert found.whole
    assert found.sealed
    assert found.signers == (fingerprint(root / "mine.key.pub"),)
    assert {c.subject for c in found.checks if c.result == "not checked"} <= {"data", "training"}


def test_verify_prints_one_json_document(root, capfd) -> None:
    assert command(["verify", str(root / "run"), "--json"]) == 0
    document = json.loads(capfd.readouterr().out)
    assert document["whole"] is True
    assert document["signed_by"] == [fingerprint(root / "mine.key.pub")]
    assert {"subject", "result", "said"} == set(document["checks"][0])
    change_json(root / "run" / "run.json", sizes=[1000] * 5)
    assert command(["verify", str(root / "run"), "--json"]) == 4
    assert json.loads(capfd.readouterr().out)["whole"] is False


def test_no_run_is_bad_input_and_not_a_change(tmp_path, capfd) -> None:
    assert command(["verify", str(tmp_path)]) == 2
    assert "there is no run" in capfd.readouterr().err
    assert command(["verify"]) == 2
    assert "which run?" in capfd.readouterr().err


def change_page(folder: Path, old: str, new: str) -> None:
    page = folder / "report.html"
    text = page.read_text()
    assert old in text
    page.write_text(text.replace(old, new))


def test_a_report_with_other_numbers_does_not_fit_its_run(root) -> None:
    page = (root / "run" / "report.html").read_text()
    epsilon = Run.load(root / "run").guarantee().epsilon(1e-5)
    for old, new in (
        (f'"epsilon":{epsilon!r}', '"epsilon":0.5'),
        ("<h1>", "<h1>Hardly "),
        ('"status":"finished"', '"status":"budget"'),
    ):
        change_page(root / "run", old, new)
        assert results(root / "run")["report"] == "changed"
        (root / "run" / "report.html").write_text(page)
    assert results(root / "run")["report"] == "whole"


def test_other_clients_than_the_seed_draws_are_noticed_in_a_chain_made_anew(root) -> None:
    bodies = ledger_bodies(root / "run")
    charged = next(body for body in bodies if body["event"] == "round" and body["clients"])
    absent = next(client for client in range(5) if client not in charged["clients"])
    charged["clients"] = sorted([*charged["clients"][1:], absent])
    rechain(root / "run", bodies)
    shutil.rmtree(root / "run" / "signatures")
    assert results(root / "run")["participants"] == "changed"


def seal_anew(folder: Path, **changes: str) -> None:
    """What somebody does who changes a run and knows how it is sealed."""
    bodies = ledger_bodies(folder)
    bodies[0].update({name: value for name, value in changes.items() if name in bodies[0]})
    bodies[-1].update(changes)
    rechain(folder, bodies)


def forge(folder: Path) -> None:
    """Change the accuracy and seal the run anew."""
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    rows[-1]["accuracy"] = 0.999
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    seal_anew(folder, metrics=metrics_seal(rows))
    (folder / "report.html").unlink()


def test_a_run_that_was_sealed_anew_is_only_betrayed_by_its_signature(root) -> None:
    forge(root / "run")
    assert results(root / "run")["signature"] == "changed"
    shutil.rmtree(root / "run" / "signatures")
    found = verify(root / "run")
    assert found.whole
    assert any("was to be signed by" in check.said for check in found.checks)
    assert not verify(root / "run", key=fingerprint(root / "mine.key.pub")).whole


def test_a_forged_run_that_somebody_else_signs_is_not_taken_for_the_owners(root, capfd) -> None:
    forge(root / "run")
    shutil.rmtree(root / "run" / "signatures")
    assert command(["verify", str(root / "run"), "--sign", str(root / "other.key")]) == 0
    owner = str(root / "mine.key.pub")
    assert command(["verify", str(root / "run"), "--key", owner]) == 4
    assert "is not signed by" in capfd.readouterr().err.replace("\n", " ")


def test_the_signature_of_one_run_does_not_fit_another(root) -> None:
    other = train(
        toy_protocol(participation=Poisson(rate=0.6), rounds=5, seed=99),
        data=toy_dataset(),
        model="logistic",
        folder=root / "second",
        workers=1,
        report=False,
    ).folder
    shutil.copytree(root / "run" / "signatures", other / "signatures")
    key = fingerprint(root / "mine.key.pub")
    assert results(other)["signature"] == "changed"
    assert not verify(other, key=key).whole


@pytest.mark.parametrize("entry", ["public", "signature", "ledger"])
def test_a_signature_that_was_changed_is_none(root, entry) -> None:
    path = next((root / "run" / "signatures").glob("*.json"))
    document = json.loads(path.read_text())
    digits = document[entry]
    document[entry] = ("0" if digits[0] != "0" else "1") + digits[1:]
    path.write_text(json.dumps(document))
    assert results(root / "run")["signature"] == "changed"


def test_a_shortened_ledger_of_a_run_made_to_look_interrupted_misses_its_signature(root) -> None:
    folder = root / "run"
    rechain(folder, ledger_bodies(folder)[:-1])
    change_json(folder / "run.json", status="unfinished")
    (folder / "model.safetensors").unlink()
    shutil.rmtree(folder / "signatures")
    assert not verify(folder, key=fingerprint(root / "mine.key.pub")).whole


def test_findings_that_were_signed_cannot_be_changed_or_taken_away(root) -> None:
    folder = root / "run"
    attacks = folder / "attacks"
    attacks.mkdir()
    row = {"name": "a", "metric": "AUC", "value": 0.52, "baseline": 0.5}
    (attacks / "a.json").write_text(json.dumps(row))
    assert results(folder)["audits and attacks"] == "not checked"
    sign_run(folder, read_private_key(root / "mine.key"))
    assert results(folder)["audits and attacks"] == "whole"
    (attacks / "a.json").write_text(json.dumps({**row, "value": 0.5}))
    assert results(folder)["attacks/a.json"] == "changed"
    (attacks / "a.json").unlink()
    assert results(folder)["attacks/a.json"] == "changed"


def test_a_run_that_was_changed_is_not_signed(root, capfd) -> None:
    change_json(root / "run" / "run.json", sizes=[1000] * 5)
    shutil.rmtree(root / "run" / "signatures")
    assert command(["verify", str(root / "run"), "--sign", str(root / "mine.key")]) == 4
    assert not (root / "run" / "signatures").exists()
    assert "sizes" in capfd.readouterr().err


def test_an_old_run_is_whole_as_far_as_can_be_seen_and_said_to_be_unsealed(root, capfd) -> None:
    folder = root / "run"
    shutil.rmtree(folder / "signatures")
    (folder / "report.html").unlink()
    unseal(folder)
    assert command(["verify", str(folder)]) == 0
    assert "before there were seals" in " ".join(capfd.readouterr().out.replace("│", " ").split())
    assert command(["verify", str(folder), "--sign", str(root / "mine.key")]) == 2
    assert command(["certify", str(folder), "--view", "server"]) == 0
    assert "no seal" in capfd.readouterr().err


def test_a_signature_is_over_the_ledger_and_the_findings(root) -> None:
    """An auditor's check with nothing but the format: the key, the last hash of the ledger, and the message."""
    document = json.loads(next((root / "run" / "signatures").glob("*.json")).read_text())
    assert document["ledger"] == ledger_bodies(root / "run")[-1]["chain"]
    body = {name: document[name] for name in ("public", "ledger", "files")}
    message = f"sordino run 1 {digest_of(body)}".encode()
    key = Ed25519PublicKey.from_public_bytes(bytes.fromhex(document["public"]))
    key.verify(bytes.fromhex(document["signature"]), message)


def test_a_new_key_is_for_its_owner_alone_and_never_written_over(tmp_path, capfd) -> None:
    path = tmp_path / "a.key"
    assert command(["verify", "--new-key", str(path)]) == 0
    assert fingerprint(tmp_path / "a.key.pub") in capfd.readouterr().out
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    before = path.read_bytes()
    assert command(["verify", "--new-key", str(path)]) == 2
    assert path.read_bytes() == before
    path.chmod(0o644)
    assert command(["train", "--sign", str(path), "--out", str(tmp_path / "r")]) == 2
    assert "chmod 600" in capfd.readouterr().err
    assert not (tmp_path / "r").exists()


@pytest.mark.parametrize("key", ["nothing", "ed25519-12", "ed25519-" + "g" * 32])
def test_a_key_that_is_none_gets_a_sentence(root, capfd, key) -> None:
    assert command(["verify", str(root / "run"), "--key", key]) == 2
    assert "fingerprint" in capfd.readouterr().err


def test_the_report_shows_the_fingerprint(root) -> None:
    assert fingerprint(root / "mine.key.pub") in (root / "run" / "report.html").read_text()


def test_a_headline_in_the_words_of_an_earlier_version_is_accepted_but_not_with_less(root) -> None:
    page = root / "run" / "report.html"
    text = page.read_text(encoding="utf-8")
    [headline] = re.findall(r"<h1>(.*?)</h1>", text, re.DOTALL)
    assert "learns without a meaningful limit" in headline
    server = "The server, or anyone who reads each client&#39;s messages"
    promises = {
        "learns without a meaningful limit about any one record.": "whole",
        "learns at most ε\u00a0=\u00a02 about any one record.": "changed",
    }
    for promise, expected in promises.items():
        page.write_text(text.replace(headline, f"{server} {promise}"), encoding="utf-8")
        assert results(root / "run")["report"] == expected


@pytest.mark.parametrize("started_with", ["mine.key", None])
def test_a_run_that_was_to_be_signed_is_not_resumed_without_a_key(
    made, tmp_path, started_with
) -> None:
    """By `train --sign`, or by a `resume --sign` that was interrupted as well."""
    run = tmp_path / "run"
    key = None if started_with is None else made / started_with
    interrupt(run, after=2, sign=key)
    if key is None:
        interrupt(run, after=3, sign=made / "other.key")
    with pytest.raises(UserError, match=r"is to be signed by ed25519-\w{32} when it ends.*--sign"):
        resume(run, data=toy_dataset())
    assert "was to be signed by ed25519-" in said_about(run, "signature")
    assert resume(run, data=toy_dataset(), sign=made / "other.key").status == "finished"
    assert verify(run).signers == (fingerprint(made / "other.key.pub"),)
    with pytest.raises(UserError, match="nothing left to run"):
        resume(run, data=toy_dataset())


def test_a_signature_that_was_taken_away_is_missed(root) -> None:
    shutil.rmtree(root / "run" / "signatures")
    wanted = fingerprint(root / "mine.key.pub")
    assert f"was to be signed by {wanted}, and is not" in said_about(root / "run", "signature")


def said_about(run: Path, subject: str) -> str:
    return next(check.said for check in verify(run).checks if check.subject == subject)


class Interrupt(Exception):
    pass


def interrupt(run: Path, *, after: int, sign: Path | None) -> None:
    """Trains a run, or goes on with it, up to a round."""

    def stop(metrics: RoundMetrics) -> None:
        if metrics.round + 1 == after:
            raise Interrupt

    protocol = toy_protocol(rounds=5)
    options = {"data": toy_dataset(), "sign": sign, "workers": 1, "on_round": stop}
    go_on = partial(train, protocol, model="logistic", folder=run)
    if run.exists():
        go_on = partial(resume, run)
    with pytest.raises(Interrupt):
        go_on(**options)
