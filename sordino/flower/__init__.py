"""Training across machines, on Flower: a SuperLink for the coordinator, a node for each client.

Where Flower is not installed, only `driver`, `agreement` and `client_store` can be imported.

On the coordinator's machine:

    driver               `train` and `resume`: hands a run to the SuperLink; `run_follower` reports
                         what the run writes to its folder
    server_app, strategy what Flower starts: the rounds of `federation.training`, with
      engine               requests as messages, replies checked, absent clients with the reason
      connected_clients    which node is which client, by its registered key
      reply_collection     asks again when Flower loses a request or its reply
      upload_requests, messages, signing    the request, its form, the coordinator's signature
    sum_rounds           secure sums: the waves of a round (`sum_keys`, `sum_waves`, `sum_messages`)
    superlink            Flower's SuperLink, behind `connection_limits` (`callers`), `mutual_tls`
                         and `access_control`
    client_keys, node_certificates, certificates    which key belongs to which client

On a client's machine:

    node_supervisor      keeps the node alive; `superlink_probe` says why there is no connection
    supernode, superexec Flower's SuperNode, and a forked process for every task
    app_pinning          the agreed app runs and no other
    client_app, local_work    the work of a round, behind
      guard                check the signature, admit, charge, work, keep, send
      admission            which requests are answered, decided before anything is charged
      agreement            what the client agreed to, and whether a protocol protects less
      sum_answers          secure sums: what is answered in each wave (`sum_member`, `sum_states`,
                           `sum_ledger`, `masked_uploads`, `sum_parties`)
      client_store         the client's folder, which `client_folder` makes; `kept_answers`: its
                           last uploads; `ledger_counter`: a second place for its ledger

Around them: `services`, `supervised_process`, `consortium`, `metrics_endpoint`, `logs`, `doctor`,
`flower_processes`, `flower_commands`, `new_consortium`; `mods` and `accountant` for other people's
Flower apps. `app/` is copied into users' folders, and clients agree to its digest: no byte of it
changes without need.
"""
