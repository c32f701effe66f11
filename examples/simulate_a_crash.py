"""Kill the model's worker in the middle of eight streams, in a hundred different ways.

    python examples/simulate_a_crash.py

Needs no model and no accelerator, and takes a few seconds: time is virtual.
"""

from triolet.testing import scenario_of, simulate

SCENARIO = scenario_of(
    {
        "name": "crash",
        "workload": [{"clients": 8, "max_tokens": [5, 40], "num_outputs": [1, 2]}],
        "fault": [
            {"kind": "runner_crash", "within_s": [0.0, 0.5]},
            {"kind": "runner_hang"},
        ],
        "engine": {"step_timeout_s": 5.0},
    }
)


def main(seeds: int = 100) -> None:
    answers = 0
    for seed in range(seeds):
        run = simulate(SCENARIO, seed)
        run.check()  # raises with a replay token if any answer differs from that of a quiet run
        answers += run.counts["end finished"]
    print(f"{seeds} histories, {answers} answers, each as if nothing had happened")


if __name__ == "__main__":
    main()
