"""Published attacks on a run.

Attackers are given what their view shows (`observed`), never the truth (`truth`): no observed type
holds a true one, the protocol that they get has no seed, and `attempt` takes one observed value.

    attacked_run         a finished run with its data and its split into clients
    referee              knows both sides of a run and hands out what a view shows
    gradient_rules       which local rules send gradients, and how their steps go
    attack               an attack: cases, `attempt(observed)`, `score(guess, truth)`, rows
    labels, inversion    from uploads that a run kept
    reconstruction, attributes    from what a model makes of clients' records
    extraction           from answers to the attacker's own questions
    clients              from all uploads of a round, whose senders are not known
    membership           from a model, with `shadows`, federations that the attacker trains;
                         `shokri`, `lira`, `rmia` and `canary_queries` read their answers
    suite                every case of an attack once, kept; `twin` trains a run without noise
"""
