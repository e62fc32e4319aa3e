"""The view whose bound is taken: the one asked about, or the server's where no other is known."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from sordino.privacy.bounds.question import Observation, Question
from sordino.privacy.bounds.summed_noise import describe_honest, find_secure_sum
from sordino.protocol import Protocol, Registry, View
from sordino.protocol.views import ViewKind

# The view whose composition is taken for each kind, where means of uploads hide a client.
PRICED_AS: Registry[Callable[[Question], View]] = Registry("bound", "view", ViewKind)


@PRICED_AS.register("server", "rounds", "coalition")
def _price_as_itself(question: Question) -> View:
    return question.view


@PRICED_AS.register("final")
def _price_as_rounds(question: Question) -> View:
    return View.ROUNDS


@PRICED_AS.register("weak", "strong")
def _price_as_coalition(question: Question) -> View:
    # Other clients are given global models, and know their own noise.
    return View.coalition(question.colluders)


# What each adversary observes, where the protocol shows no more.
OBSERVATIONS: Registry[Observation] = Registry("observation", "view", ViewKind)
OBSERVATIONS.register("server")(Observation.UPLOADS)
OBSERVATIONS.register("rounds", "coalition", "weak", "strong")(Observation.MODELS)
OBSERVATIONS.register("final")(Observation.LAST)

# What the adversary of an audit is given where nobody has built a game for what its view shows. It
# is more, so what is measured is not a lower bound for the view, and is not called one.
GIVEN_INSTEAD = {Observation.SOME_MODELS: Observation.MODELS}


@dataclass(frozen=True, kw_only=True)
class PricedView:
    """The view whose bound is taken for a question.

    Attributes:
        view: The view whose bound is taken.
        sentence: What the adversary sees, and why the bound of another view is taken, if so.
    """

    view: View
    sentence: str


def find_priced_view(question: Question) -> PricedView:
    """Returns the view whose bound is taken.

    The server's always holds: all that other adversaries see is made of what the server sees.
    """
    protocol = question.protocol
    view = question.view
    sees = f"The adversary sees {question.sees}."
    if view.is_server and find_secure_sum(question) is not None:
        return PricedView(view=view, sentence=f"{sees} {describe_honest(question, view)}")
    if view.is_server:
        return PricedView(view=view, sentence=sees)

    def take_server(reason: str) -> PricedView:
        """Returns the server's view, with the reason why it is taken.

        Args:
            reason: Why the server's bound is taken, a sentence for the derivation.
        """
        # Where the server learns only sums, the noise of its helpers hides nothing.
        return PricedView(view=View("server", question.colluders), sentence=f"{sees} {reason}")

    if not protocol.aggregation.averages:
        return take_server(
            f"{protocol.aggregation.in_words} is post-processing of the uploads: the server's "
            "bound holds, and no other is known."
        )
    if protocol.local.corrected:
        return take_server(
            "Control variates carry single uploads from round to round: the server's bound is "
            "taken."
        )
    if protocol.personalization.of_uploads:
        return take_server(
            "What a client is given is made of single uploads: the server's bound is taken."
        )
    if protocol.client:
        return take_server(
            "Clients leave when their budgets are spent, and their noise with them: the server's "
            "bound is taken."
        )
    if question.shares is None:
        return take_server(
            "The clients' shares in the mean are not known here: the server's bound is taken."
        )
    # The share of a client then depends on who else was drawn, and no bound covers that.
    if protocol.participation.draws and not question.equal_shares:
        return take_server("Unequal shares among random participants: the server's bound is taken.")
    if view == View.FINAL:
        sees = f"{sees} The last model is one of the rounds' models."
    return PricedView(view=PRICED_AS.of(view.kind)(question), sentence=sees)


def refuse_unknown_view(question: Question) -> None:
    """Refuses a view for which nobody has said whose bound holds.

    Raises:
        UnknownKind: Names the view.
    """
    PRICED_AS.of(question.view.kind)


def observe_uploads(question: Question) -> Observation:
    """Returns the observation of an adversary to whom every client's upload is shown."""
    return Observation.UPLOADS


def observe_models(question: Question) -> Observation:
    """Returns what the view of a question shows, or more where no game is built for just that.

    Budgets and unknown shares change the bound that is taken, not what the adversary sees.
    """
    protocol = question.protocol
    sees_uploads = protocol.local.corrected or protocol.personalization.of_uploads
    if sees_uploads or not protocol.aggregation.known_law:
        return Observation.UPLOADS
    shown = find_shown(protocol, question.view)
    return GIVEN_INSTEAD.get(shown, shown)


def find_shown(protocol: Protocol, view: View) -> Observation:
    """Returns what a view shows.

    Args:
        protocol: The federation that is priced.
        view: The adversary.
    """
    if view.is_server and protocol.channel.sums_only:
        # With the model before a round, the sum of its uploads says what the model after it says.
        return Observation.MODELS
    return OBSERVATIONS.of(view.kind)
