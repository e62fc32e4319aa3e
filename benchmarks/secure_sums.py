"""Measures secure sums: `python -m benchmarks.secure_sums --clients 100 --parameters 100000`.

Seconds of one client, of the coordinator, and bytes of a round beside the vectors, with messages as
they are sent. Some clients fall silent, which costs the coordinator most. One core.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.asymmetric import ec

from sordino.flower.sum_forms import encode_body
from sordino.flower.sum_messages import (
    ConfirmReply,
    Label,
    MaskCall,
    PrepareReply,
    UnmaskCall,
    UnmaskReply,
)
from sordino.secure_sums.key_roster import Roster, encode_identity
from sordino.secure_sums.members import MaskRequest, Member
from sordino.secure_sums.opening import forward_letters, open_sum

LABEL = Label(round=1, attempt=0)


def clocked(work: Callable[..., Any], *given: Any) -> tuple[Any, float]:
    """Returns what a call returns, and how many seconds of the processor it took."""
    began = time.process_time()
    found = work(*given)
    return found, time.process_time() - began


def gather_members(
    clients: int, threshold: int, colluders: int
) -> tuple[Roster, dict[int, Member], float]:
    """Returns members that have met, and how long one of them took to check all keys."""
    identities = {client: ec.generate_private_key(ec.SECP384R1()) for client in range(clients)}
    prints = [
        hashlib.sha256(encode_identity(identities[client])).hexdigest() for client in range(clients)
    ]
    roster = Roster(
        training="one", fingerprints=tuple(prints), threshold=threshold, colluders=colluders
    )
    members = {
        client: Member(roster=roster, client=client, identity=key)
        for client, key in identities.items()
    }
    keys = [member.signed_key for member in members.values()]
    _, meeting = clocked(members[0].meet, keys)
    for member in members.values():
        member.remember(keys)
    return roster, members, meeting


def measure_round(
    clients: int, parameters: int, silent: int, bits: int, colluders: int
) -> dict[str, float]:
    """Returns seconds and bytes of a round."""
    threshold = clients - silent
    roster, members, meeting = gather_members(clients, threshold, colluders)
    everyone = sorted(members)
    (_, sent), preparing = clocked(members[0].prepare, str(LABEL))
    prepared = {client: members[client].prepare(str(LABEL)) for client in everyone}
    letters = forward_letters(one for _, one in prepared.values())
    asked = MaskRequest(label=str(LABEL), participants=tuple(everyone), request=bytes(32))
    vector = np.zeros(parameters, f"uint{bits}")
    masked = {}
    masking = 0.0
    for client in everyone:
        given = (vector, prepared[client][0], asked, letters[client])
        masked[client], took = clocked(members[client].mask, *given)
        masking = max(masking, took)
    survivors = {client: masked[client][1].signature for client in everyone[:threshold]}
    confirmations = None
    confirming = 0.0
    if roster.needs_confirmation:
        _, confirming = clocked(members[0].confirm, masked[0][0], survivors)
        confirmations = {
            client: members[client].confirm(masked[client][0], survivors) for client in survivors
        }
    shares, unmasking = clocked(members[0].unmask, masked[0][0], survivors, confirmations)
    answers = [
        members[client].unmask(masked[client][0], survivors, confirmations) for client in survivors
    ]
    total, opening = clocked(
        lambda: open_sum(
            roster,
            asked=asked,
            preparations={client: one for client, (_, one) in prepared.items()},
            graph=members[0].graph,
            vectors={client: masked[client][1].residues for client in survivors},
            answers=answers,
        )
    )
    if total.any():
        raise ArithmeticError("the sum of zeros is not zero")
    preparation = PrepareReply(mask_public=sent.mask_public, letters=sent.letters)
    down = MaskCall(label=LABEL, participants=asked.participants, letters=letters[0])
    unmask = UnmaskCall(
        training="0" * 32,
        label=LABEL,
        survivors=survivors,
        confirmations=confirmations or {},
        following=LABEL,
    )
    up = UnmaskReply(own_shares=shares.survivors, key_shares=shares.absent, following=preparation)
    signed = ConfirmReply(signature=masked[0][1].signature)
    return {
        "meeting": meeting,
        "preparing": preparing,
        "masking": masking,
        "confirming": confirming,
        "unmasking": unmasking,
        "opening": opening,
        "vector": vector.nbytes,
        "down": len(encode_body(down)) + len(encode_body(unmask)),
        "up": len(encode_body(signed)) + len(encode_body(up)),
    }


def main() -> None:
    """Measures, and prints what was measured."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--clients", type=int, nargs="+", default=[3, 10, 30, 100])
    parser.add_argument("--parameters", type=int, default=100_000)
    parser.add_argument("--silent", type=float, default=0.1, help="share that falls silent")
    parser.add_argument("--colluding", type=float, default=0.0, help="share that may collude")
    parser.add_argument("--bits", type=int, default=32)
    given = parser.parse_args()
    print(f"{given.parameters:,} parameters of {given.bits} bits, load {os.getloadavg()[0]:.1f}")
    for clients in given.clients:
        silent = int(given.silent * clients)
        colluders = int(given.colluding * clients)
        found = measure_round(clients, given.parameters, silent, given.bits, colluders)
        own = found["preparing"] + found["masking"] + found["confirming"] + found["unmasking"]
        seconds = ", ".join(
            f"{name} {found[name]:.3f}"
            for name in ("preparing", "masking", "confirming", "unmasking")
        )
        print(
            f"{clients} clients, {silent} silent: client {own:.3f} s ({seconds}; once a training "
            f"{found['meeting']:.3f}), coordinator {found['opening']:.2f} s; vector "
            f"{found['vector']:,.0f} bytes, beside it {found['up']:,.0f} up and "
            f"{found['down']:,.0f} down"
        )


if __name__ == "__main__":
    main()
