"""Side-by-side timing of private training steps: `python -m benchmarks`.

A private step is judged against the non-private step of the same network on the same machine in
the same minute, so every number here is a ratio. `models` says what is trained, `contestants`
who trains it, `guard` that they all compute the same gradient, `timing` and `memory` what it
costs, `report` what is written down.
"""
