"""Opens sums of clients' vectors and nothing else, against a server that deviates.

Two waves of messages a round, after one in which clients prepare for the first round:

    wave 1   the server names the participants; each sends its vector under masks
    wave 2   the server names the survivors; each sends shares of the masks that are left in the
             sum, and in the same message prepares for the next round

Where many clients may be left out, and beyond 100 clients, a wave between the two has the list of
survivors confirmed.

`key_roster` says who takes part and whose keys are genuine, `share_holders` who holds shares for
whom, `letters` what clients tell each other through the server, `masks` how a vector is hidden,
`members` what a client does and refuses, `opening` how the server opens a sum, and `share_joining`
how it joins shares. The argument is in docs/theory.md#a19.
"""
