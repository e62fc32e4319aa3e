"""The report of a run: its numbers are those of the commands, it is one safe file of bounded size, and it never fails a training."""

import json
import math
import re
import shutil
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest
from scipy.stats import norm

import sordino
from sordino import Data, Dataset, Gaussian, Run, certify, resume, train
from sordino.cli.main import run
from sordino.privacy.curves.gaussian_curve import GaussianCurve
from sordino.privacy.curves.mixtures import mix_gaussians
from sordino.privacy.guarantee import Guarantee
from sordino.protocol import Budget, Model, Privacy, View, loads, read_protocol
from sordino.report import writing
from sordino.report.figures import draw_spending
from sordino.report.page import run_page
from sordino.report.phrasing import explain_missing_limit
from sordino.report.run_summary import bound_best_guess, summarize_run
from sordino.report.tiles import explain_headline, list_tiles
from sordino.report.view_figure import draw_views, format_measured
from sordino.report.writing import write_report
from tests.report.conftest import written_by_hand
from tests.support import toy_dataset, toy_protocol, unseal

DIGITS = """
seed = 3
federation = { clients = 4, rounds = 2 }
local = { rule = "fedavg", steps = 1, batch = 4, clip = 1.0, schedule = { kind = "constant", rate = 0.1 } }
noise = { mechanism = "gaussian", sigma = 0.3 }
data = { name = "digits", records = 20 }
model = { name = "logistic" }
"""
ATTACK = {
    "name": "membership inference",
    "metric": "AUC",
    "value": 0.52,
    "baseline": 0.5,
    "paper": "Shokri et al. 2017",
}


class Page(HTMLParser):
    """A page as a browser sees it: its elements with their attributes, its text, its machine-readable block."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.inside: list[str] = []
        self.text, self.block = "", ""
        self.feed(path.read_text())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        self.inside.append(tag)

    def handle_endtag(self, tag: str) -> None:
        while self.inside and self.inside.pop() != tag:
            pass

    def handle_data(self, data: str) -> None:
        if "script" in self.inside:
            self.block += data
        elif "style" not in self.inside:
            self.text += data

    @property
    def document(self) -> dict:
        return json.loads(self.block)


def answer(capfd, *arguments: str) -> dict:
    capfd.readouterr()
    assert run([*arguments, "--json"]) == 0
    return json.loads(capfd.readouterr().out)


class TestNumbers:
    @pytest.mark.slow
    def test_bounds_are_those_of_certify_in_every_view_and_unit(self, folder, capfd) -> None:
        document = Page(write_report(folder)).document
        for unit in ("record", "client"):
            certified = answer(capfd, "certify", str(folder), "--unit", unit, "--delta", "1e-4")[
                "guarantees"
            ]
            assert document["guarantees"][unit] == certified
            assert [one["view"] for one in certified] == [
                "server",
                "rounds",
                "coalition:1",
                "coalition:4",
                "final",
            ]

    def test_metrics_are_those_of_the_run_and_audits_those_of_audit(self, folder) -> None:
        document = Page(write_report(folder)).document
        rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
        for name in ("round", "loss", "accuracy", "seconds"):
            assert document["metrics"][name] == [row[name] for row in rows]
        assert document["run"]["accuracy"] == rows[-1]["accuracy"]
        (kept,) = [json.loads(path.read_text()) for path in (folder / "audits").iterdir()]
        assert document["audits"] == [kept]
        assert document["ledger"]["charges"] == len(rows)

    def test_what_people_read_is_what_machines_read(self, folder, capfd) -> None:
        printed = answer(capfd, "report", str(folder))
        page = Page(folder / "report.html")
        assert printed.pop("page") == str(folder / "report.html")
        assert page.document == printed
        epsilon = next(
            one["epsilon"] for one in printed["guarantees"]["record"] if one["view"] == "rounds"
        )
        claimed = re.search(r"learns at most ε\s=\s([\d.]+) about any one record", page.text)
        assert epsilon <= float(claimed[1]) <= 1.01 * epsilon
        measured = printed["audits"][0]["epsilon_lower"]
        shown = re.search(r"Measured by audit, at least\s*ε ([\d.]+)", page.text)
        assert 0.99 * measured <= float(shown[1]) <= measured
        assert f"{printed['ledger']['charges']} rounds charged" in page.text

    def test_privacy_spent_ends_at_the_promise_and_each_point_is_a_price(self, folder) -> None:
        summary = summarize_run(folder)
        assert summary.spent.rounds == (1, 2, 3, 4, 5, 6)
        assert summary.spent.epsilons[-1] == summary.main.epsilon(1e-4)
        three = certify(
            summary.run.protocol, "rounds", delta=1e-4, rounds=range(3), sizes=summary.run.sizes
        )
        assert summary.spent.epsilons[2] == three.epsilon(1e-4)

    def test_given_who_took_part_clients_are_priced_as_certify_prices_them(
        self, long_run, folder, capfd
    ) -> None:
        realised = answer(capfd, "certify", str(folder), "--view", "rounds", "--delta", "1e-4")[
            "realised"
        ]
        shown = {
            row["client"]: row["epsilon"] for row in Page(write_report(folder)).document["clients"]
        }
        assert shown == {row["client"]: row["epsilon"] for row in realised}

    def test_partition_and_facts_are_those_of_the_run(self, folder) -> None:
        document = Page(write_report(folder)).document
        counts = document["partition"]["counts"]
        assert document["partition"]["classes"] == ["class 0", "class 1", "class 2"]
        assert [sum(row) for row in counts] == json.loads((folder / "run.json").read_text())[
            "sizes"
        ]
        facts = json.loads((folder / "run.json").read_text())
        assert document["facts"]["model_digest"] == facts["model_digest"]

    def test_no_digest_lets_a_reader_check_a_guess_of_a_private_record(self, folder) -> None:
        """Whoever knows all records but one could try every value of that one."""
        text = write_report(folder).read_text()
        data = json.loads((folder / "run.json").read_text())["data_digest"]
        chain = json.loads((folder / "ledger.jsonl").read_text().splitlines()[-1])["chain"]
        assert data not in text
        assert chain not in text
        assert text.count("a guess of one private record could be checked against it") == 2

    def test_of_public_records_both_digests_are_shown(self, tmp_path) -> None:
        plan = loads(DIGITS)
        run = train(plan, folder=tmp_path / "digits", workers=1, report=False)
        page = Page(write_report(run))
        chain = json.loads((run.folder / "ledger.jsonl").read_text().splitlines()[-1])["chain"]
        assert page.document["ledger"]["digest"] == chain
        assert page.document["facts"]["data_digest"] == run.facts["data_digest"]
        assert chain in page.text
        assert run.facts["data_digest"] in page.text


class TestBestGuess:
    def guarantee(self, curve) -> Guarantee:
        return Guarantee(view=View.ROUNDS, unit="record", method="", curve=curve)

    @pytest.mark.parametrize("mu", [0.0, 0.3, 1.0, 2.5])
    def test_of_a_gaussian_is_the_likelihood_ratio_tests(self, mu) -> None:
        assert bound_best_guess(self.guarantee(GaussianCurve(mu=mu))) == pytest.approx(
            norm.cdf(mu / 2), abs=1e-9
        )

    def test_of_a_mixture_is_the_mean_and_of_a_worse_description_never_less(self) -> None:
        exact = 0.7 * norm.cdf(0.25) + 0.3 * norm.cdf(1.0)
        curve = mix_gaussians([0.5, 2.0], [0.7, 0.3])
        assert bound_best_guess(self.guarantee(curve)) == pytest.approx(exact, abs=1e-4)
        assert exact <= bound_best_guess(self.guarantee(curve.losses(1e-3))) <= 1

    def test_of_nothing_hidden_is_always_right(self) -> None:
        assert bound_best_guess(self.guarantee(GaussianCurve(mu=math.inf))) == 1.0


class TestTheFile:
    def test_every_figure_says_what_it_shows_and_has_a_table(self, folder) -> None:
        (folder / "attacks").mkdir()
        plot = {
            "title": "ROC",
            "x_label": "false alarms",
            "y_label": "hits",
            "lines": {"attack": [[0, 0.5, 1], [0, 0.6, 1]]},
        }
        (folder / "attacks" / "mia.json").write_text(json.dumps([{**ATTACK, "plots": [plot]}]))
        path = write_report(folder)
        page, text = Page(path), path.read_text()
        names = [attributes["id"] for tag, attributes in page.elements if tag == "figure"]
        assert names == [
            f"figure-{name}"
            for name in (
                "views",
                "tradeoff",
                "spent",
                "learning",
                "partition",
                "attacks",
                "attack-plot-0",
            )
        ]
        ids = [attributes["id"] for _, attributes in page.elements if "id" in attributes]
        assert len(ids) == len(set(ids))
        for name in names:
            figure = text[
                text.index(f'id="{name}"') : text.index("</figure>", text.index(f'id="{name}"'))
            ]
            labels = re.search(r'<svg [^>]*role="img" aria-labelledby="(\S+) (\S+)"', figure)
            for label in labels.groups():
                assert re.search(rf'id="{label}">[^<]{{5,}}<', figure)
            assert figure.count("<tr>") >= 2

    def test_nothing_is_loaded_or_run(self, folder) -> None:
        page = Page(write_report(folder))
        assert [attributes.get("type") for tag, attributes in page.elements if tag == "script"] == [
            "application/json"
        ]
        assert not {tag for tag, _ in page.elements} & {
            "img",
            "link",
            "iframe",
            "object",
            "embed",
            "form",
            "base",
        }
        for _, attributes in page.elements:
            assert not any(name.startswith("on") for name in attributes)
            for name in ("src", "href", "xlink:href", "action"):
                assert (attributes.get(name) or "#").startswith("#")
        style = re.search(r"<style>(.*?)</style>", (folder / "report.html").read_text(), re.DOTALL)[
            1
        ]
        assert "url(" not in style
        assert "@import" not in style

    @pytest.mark.slow
    def test_names_of_users_are_text_and_nothing_else(self, tmp_path) -> None:
        bad = "<img src=x onerror=alert(1)>$a_{$</script><script>alert(2)</script>"
        toy = toy_dataset()
        classes = tuple(f"{bad}{k}" for k in range(3))
        data = Dataset(
            name=bad,
            x_train=toy.x_train,
            y_train=toy.y_train,
            x_test=toy.x_test,
            y_test=toy.y_test,
            classes=classes,
        )
        folder = tmp_path / '"><svg onload=alert(3)>$x_{$'
        train(
            toy_protocol(rounds=2),
            data=data,
            model="logistic",
            folder=folder,
            workers=1,
            report=False,
        )
        (folder / "attacks").mkdir()
        plot = {
            "title": bad,
            "x_label": bad,
            "y_label": bad,
            "lines": {"_" + bad: [[0, 1], [0, 1]]},
        }
        row = {**ATTACK, "name": bad, "metric": bad, "paper": bad, "plots": [plot]}
        (folder / "attacks" / "a.json").write_text(json.dumps(row))
        plain = toy_report(tmp_path / "plain")
        page = Page(write_report(folder))
        assert {tag for tag, _ in page.elements} == {tag for tag, _ in plain.elements}
        assert not any(
            name.startswith("on") for _, attributes in page.elements for name in attributes
        )
        assert [attributes.get("type") for tag, attributes in page.elements if tag == "script"] == [
            "application/json"
        ]
        assert bad in page.text
        assert page.document["attacks"][0]["name"] == bad

    @pytest.mark.soak
    def test_10_000_rounds_fit_and_nothing_is_made_up(self, long_run, tmp_path) -> None:
        path = write_report(long_run, tmp_path / "long.html")
        assert path.stat().st_size < 2_000_000
        document = Page(path).document
        rows = [json.loads(line) for line in (long_run / "metrics.jsonl").read_text().splitlines()]
        shown = document["metrics"]
        assert len(shown["round"]) <= 200
        assert (shown["round"][0], shown["round"][-1]) == (0, 9999)
        assert all(
            rows[t]["loss"] == loss for t, loss in zip(shown["round"], shown["loss"], strict=True)
        )
        assert document["spent"]["rounds"][-1] == 10_000

    def test_an_old_run_without_a_partition_and_a_run_that_is_under_way_have_one(
        self, folder
    ) -> None:
        unseal(folder)
        (folder / "partition.json").unlink()
        facts = json.loads((folder / "run.json").read_text())
        (folder / "run.json").write_text(json.dumps({**facts, "status": "unfinished"}))
        (folder / "model.safetensors").unlink()
        text = Page(write_report(folder)).text
        assert "The run is not finished." in text
        assert "Which client has which labels was not recorded" in text


def toy_report(folder: Path) -> Page:
    """The report of a run with tame names."""
    train(
        toy_protocol(rounds=2),
        data=toy_dataset(),
        model="logistic",
        folder=folder,
        workers=1,
        report=False,
    )
    (folder / "attacks").mkdir()
    plot = {"title": "ROC", "x_label": "x", "y_label": "y", "lines": {"line": [[0, 1], [0, 1]]}}
    (folder / "attacks" / "a.json").write_text(json.dumps({**ATTACK, "plots": [plot]}))
    return Page(write_report(folder))


class TestHonesty:
    def test_what_was_measured_at_a_smaller_delta_is_no_lower_bound_at_the_pages(
        self, folder
    ) -> None:
        """Epsilon grows as delta shrinks, and the page shows it at 1e-4."""
        (path,) = (folder / "audits").iterdir()
        audit = json.loads(path.read_text())
        for delta, number in ((1e-9, "not audited"), (1e-4, "ε "), (1e-2, "ε ")):
            path.write_text(json.dumps({**audit, "delta": delta}))
            summary = summarize_run(folder)
            tile = list_tiles(summary)[2]
            assert tile.number.startswith(number), delta
            assert ("none of the audits below" in tile.note) == (delta < 1e-4)
            assert (format_measured(summary, View.ROUNDS) == "–") == (delta < 1e-4)
            assert ("measured, at least" in draw_views(summary).svg) == (delta >= 1e-4)

    def test_an_audit_about_clients_is_not_drawn_among_bounds_about_records(self, folder) -> None:
        (path,) = (folder / "audits").iterdir()
        assert "one record: measured, at least" in draw_views(summarize_run(folder)).svg
        path.write_text(json.dumps({**json.loads(path.read_text()), "unit": "client"}))
        assert "measured, at least" not in draw_views(summarize_run(folder)).svg

    def test_no_truth_lies_between_a_bound_and_what_refutes_it(self, folder) -> None:
        (path,) = (folder / "audits").iterdir()
        audit = json.loads(path.read_text())
        assert list_tiles(summarize_run(folder))[2].note.endswith("the truth lies between the two")
        path.write_text(json.dumps({**audit, "verdict": "refuted"}))
        tile = list_tiles(summarize_run(folder))[2]
        assert tile.word == "The audit contradicts the guarantee"
        assert "truth" not in tile.note

    def test_a_bound_under_seeded_noise_does_not_hold_against_who_knows_the_seed(
        self, folder
    ) -> None:
        summary = summarize_run(folder)
        seeded = explain_headline(summary)
        assert seeded.endswith("whatever it knows other than the seed of the noise.")
        noise = replace(summary.run.protocol.noise, secure=True)
        plan = replace(summary.run.protocol, noise=noise)
        secure = replace(summary, run=replace(summary.run, protocol=plan))
        assert explain_headline(secure).endswith("whatever the adversary knows or computes.")

    def test_a_budget_in_another_view_is_not_what_was_spent_of(self, folder) -> None:
        """A run that diverged is summed up in the view rounds, even if its budget is in final."""
        summary = summarize_run(folder)
        assert "of 200 allowed" in list_tiles(summary)[0].note
        assert "was not exceeded" in draw_spending(summary).description
        final = Privacy(budget=Budget(epsilon=0.01, delta=1e-4, view="final"))
        plan = replace(summary.run.protocol, privacy=final)
        other = replace(summary, run=replace(summary.run, protocol=plan))
        assert other.budget is None
        assert "allowed" not in list_tiles(other)[0].note
        assert "budget" not in draw_spending(other).description

    def test_what_has_no_limit_is_explained_by_whose_noise_counts(self) -> None:
        """Ninety uploads are in a sum, and 99 clients know theirs: only the client's own is left."""
        plan = read_protocol(Path(sordino.__file__).parent / "examples" / "digits.toml")
        found = certify(plan, "coalition:99")
        assert math.isinf(found.epsilon(1e-5))
        assert "with at least 1 honest share:" in explain_missing_limit(found)
        assert certify(plan, "server").epsilon(1e-5) < 4

    @pytest.mark.slow
    def test_noise_from_a_seed_is_a_warning_and_noise_from_the_system_is_none(
        self, tmp_path
    ) -> None:
        from dataclasses import replace

        protocol = toy_protocol(rounds=2)
        secure = replace(protocol, noise=replace(protocol.noise, secure=True))
        pages = []
        for name, plan in (("seeded", protocol), ("secure", secure)):
            train(
                plan,
                data=toy_dataset(),
                model="logistic",
                folder=tmp_path / name,
                workers=1,
                report=False,
            )
            pages.append(Page(write_report(tmp_path / name)).text)
        assert "A run for research." in pages[0]
        assert "Anyone who knows the seed" in pages[0]
        assert "A run for research." not in pages[1]
        assert "Anyone who knows the seed" not in pages[1]
        assert all("What this does not protect" in page for page in pages)

    @pytest.mark.slow
    def test_a_view_without_a_limit_a_large_delta_and_a_refuting_audit_are_said(
        self, folder, tmp_path
    ) -> None:
        from dataclasses import replace

        from sordino.protocol import Budget, Privacy

        protocol = toy_protocol(
            rounds=2, privacy=Privacy(budget=Budget(epsilon=1e6, delta=0.02, view="rounds"))
        )
        central = replace(protocol, noise=replace(protocol.noise, where="server"))
        train(
            central,
            data=toy_dataset(),
            model="logistic",
            folder=tmp_path / "central",
            workers=1,
            report=False,
        )
        text = Page(write_report(tmp_path / "central")).text
        assert "no limit" in text
        assert "There is no limit to what it learns." in text
        assert "A δ that is too large" in text
        (audit,) = (folder / "audits").iterdir()
        audit.write_text(json.dumps({**json.loads(audit.read_text()), "verdict": "refuted"}))
        assert "An audit contradicts the guarantee." in Page(write_report(folder)).text

    @pytest.mark.slow
    def test_what_was_measured_with_more_than_the_view_is_not_said_of_the_view(
        self, folder
    ) -> None:
        (audit,) = (folder / "audits").iterdir()
        assert json.loads(audit.read_text())["given"] == ""  # minibatches are secret by default
        assert "by an adversary that was given" not in Page(write_report(folder)).text
        audit.write_text(
            json.dumps(
                {
                    **json.loads(audit.read_text()),
                    "given": "every noisy step of the attacked client",
                }
            )
        )
        text = Page(write_report(folder)).text
        assert (
            "by an adversary that was given every noisy step of the attacked client, as the bound allows"
            in text
        )
        assert "the truth lies between the two" not in text
        assert "rounds, one record, given every noisy step of the attacked client" in text

    @pytest.mark.slow
    def test_an_audit_of_the_run_is_in_the_report_at_once(
        self, folder, tmp_path, monkeypatch, capfd
    ) -> None:
        monkeypatch.chdir(tmp_path)
        shutil.rmtree(folder / "audits")
        assert "not audited" in Page(write_report(folder)).text
        assert (
            run(["audit", str(folder), "--view", "final", "--trainings", "100", "--workers", "1"])
            == 0
        )
        document = Page(folder / "report.html").document
        assert [audit["view"] for audit in document["audits"]] == ["final"]
        limits = document["audits"][0]["tests"]
        assert all(
            0 < one["false_positive"] <= 1 and 0 < one["false_negative"] <= 1 for one in limits
        )

    @pytest.mark.slow
    def test_what_one_training_says_is_in_the_report_at_once(
        self, tmp_path, monkeypatch, capfd
    ) -> None:
        monkeypatch.chdir(tmp_path)
        plan = [
            "--set",
            "federation.rounds=3",
            "--set",
            "federation.clients=6",
            "--set",
            "noise.sigma=0.01",
        ]
        budget = ["--set", "privacy.budget.epsilon=1e6", "--set", "privacy.budget.view=server"]
        assert run(["train", *plan, *budget, "--out", "a"]) == 0
        assert "not audited" in Page(Path("a/report.html")).text
        assert run(["audit", "a", "--one-run", "records", "--view", "server"]) == 0
        assert run(["audit", "a", "--one-run", "clients", "--view", "rounds"]) == 0
        kept = {path.name: json.loads(path.read_text()) for path in Path("a/audits").iterdir()}
        assert sorted(kept) == ["rounds-client-a-2.json", "server-record-a-1.json"]
        page = Page(Path("a/report.html"))
        assert page.document["audits"] == [kept[name] for name in sorted(kept)]
        assert kept["server-record-a-1.json"]["epsilon_lower"] > 0
        assert "by one training, 95 % sure; the truth lies between the two" in page.text
        assert "rounds, one client" in page.text
        assert "an estimate, not a bound" in page.text


class TestAtTheEnd:
    @pytest.mark.slow
    def test_train_and_resume_write_it_and_say_where(self, tmp_path, monkeypatch, capfd) -> None:
        from sordino.cli.progress import TrainingProgress

        monkeypatch.chdir(tmp_path)
        quick = ["--set", "federation.rounds=4", "--set", "federation.clients=10", "--workers", "1"]
        assert run(["train", *quick, "--out", "a"]) == 0
        assert "a/report.html" in capfd.readouterr().out
        assert Page(tmp_path / "a" / "report.html").document["run"]["rounds"] == 4

        def stop(self, metrics) -> None:
            if metrics.round == 1:
                raise KeyboardInterrupt

        with monkeypatch.context() as patched:
            patched.setattr(TrainingProgress, "advance", stop)
            assert run(["train", *quick, "--out", "b"]) == 130
        assert not (tmp_path / "b" / "report.html").exists()
        assert run(["resume", "b"]) == 0
        assert Page(tmp_path / "b" / "report.html").document["run"]["rounds"] == 4

    def test_from_python_too_unless_told_otherwise(self, tmp_path) -> None:
        train(
            toy_protocol(rounds=2),
            data=toy_dataset(),
            model="logistic",
            folder=tmp_path / "a",
            workers=1,
        )
        assert (tmp_path / "a" / "report.html").exists()
        train(
            toy_protocol(rounds=2),
            data=toy_dataset(),
            model="logistic",
            folder=tmp_path / "b",
            workers=1,
            report=False,
        )
        assert not (tmp_path / "b" / "report.html").exists()

    @pytest.mark.parametrize(
        "error",
        [RuntimeError("no ink"), OSError(28, "No space left on device"), KeyboardInterrupt()],
    )
    def test_one_that_cannot_be_written_is_a_message_and_the_run_is_whole(
        self, tmp_path, monkeypatch, capfd, error
    ) -> None:
        def fail(*_: object) -> None:
            raise error

        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr(writing, "write_report", fail)
        quick = ["--set", "federation.rounds=2", "--set", "federation.clients=10", "--workers", "1"]
        assert run(["train", *quick, "--out", "a"]) == 0
        out, err = capfd.readouterr()
        assert "report" in err
        assert "sordino report a" in err
        assert "report.html" not in out
        assert Run.load("a").status == "finished"
        with pytest.warns(UserWarning, match="report"):
            train(
                toy_protocol(rounds=2),
                data=toy_dataset(),
                model="logistic",
                folder=tmp_path / "b",
                workers=1,
            )

    def test_one_that_was_resumed_from_python_has_it(self, tmp_path) -> None:
        def stop(metrics) -> None:
            if metrics.round == 0:
                raise KeyboardInterrupt

        plan = toy_protocol(rounds=2)
        with pytest.raises(KeyboardInterrupt):
            train(
                plan,
                data=toy_dataset(),
                model="logistic",
                folder=tmp_path / "a",
                workers=1,
                on_round=stop,
            )
        resume(tmp_path / "a", data=toy_dataset(), model="logistic", workers=1)
        assert (tmp_path / "a" / "report.html").exists()


@pytest.mark.slow
def test_an_attack_is_in_the_report_at_once_and_what_noise_0_means(
    folder, monkeypatch, capfd
) -> None:
    write_report(folder)

    def attacked(subject: Run, *_: object) -> tuple[list, dict]:
        (subject.folder / "attacks").mkdir()
        found = [{**ATTACK, "name": f"labels, noise {noise}"} for noise in (0, 0.5)]
        (subject.folder / "attacks" / "labels.json").write_text(json.dumps(found))
        return [], {}

    monkeypatch.setattr("sordino.cli.attack_command.attack_with_display", attacked)
    assert "No attacks" in Page(folder / "report.html").text
    assert run(["attack", str(folder), "labels"]) == 0
    shown = Page(folder / "report.html")
    assert [one["name"] for one in shown.document["attacks"]] == [
        "labels, noise 0",
        "labels, noise 0.5",
    ]
    assert "“Noise 0” is the same" in shown.text


@pytest.mark.slow
def test_an_epsilon_beyond_a_hundred_is_no_meaningful_limit_for_people_and_digits_for_machines(
    tmp_path,
) -> None:
    """Tables, figures and sentences alike; the block for machines has the number."""
    protocol = toy_protocol(
        rounds=30,
        noise=Gaussian(sigma=0.05),
        data=Data(name="digits", records=20),
        model=Model(name="logistic"),
    )
    run = written_by_hand(tmp_path / "loud", protocol, lambda t: tuple(range(5)), [20] * 5)
    summary = summarize_run(run)
    epsilon = summary.main.epsilon(summary.headline[2])
    assert 100 < epsilon < math.inf
    page = run_page(summary)
    text, block = page.split('<script type="application/json"')
    assert "learns without a meaningful limit" in text
    assert "no meaningful limit" in text
    for digits in (at_most_digits(one.epsilon(1e-5)) for one in summary.guarantees["record"]):
        if float(digits) > 100:
            assert f">{digits}<" not in text
            assert f"= {digits}" not in text
    assert repr(epsilon) in block
    ticks = re.findall(r">(\d{3,})</text>", page)
    assert all(int(tick) <= 100 for tick in ticks)


def at_most_digits(epsilon: float) -> str:
    """Three digits, rounded up."""
    scale = 10 ** (math.floor(math.log10(epsilon)) - 2)
    return f"{math.ceil(epsilon / scale) * scale:g}"
