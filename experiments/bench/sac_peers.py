"""SAC of SBX (JAX) or Stable-Baselines3 (PyTorch), driven by `off_policy.py` through a pipe.

python -m experiments.bench.sac_peers {sbx,sb3} ENV answers each line on stdin with its updates per
second, one environment step to each update.
"""

import sys
import time
import warnings

from experiments.bench.off_policy import BATCH, HIDDEN, MIN_SECONDS, WARMUP


def main(peer: str, env: str) -> None:
    warnings.filterwarnings("ignore")
    if peer == "sbx":
        from sbx import SAC  # pyright: ignore[reportMissingImports]
    else:
        from stable_baselines3 import SAC  # pyright: ignore[reportMissingImports]

    model = SAC(
        "MlpPolicy",
        env,
        learning_starts=WARMUP,
        buffer_size=100_000,
        batch_size=BATCH,
        policy_kwargs={"net_arch": list(HIDDEN)},
    )

    def train(num_steps: int) -> float:
        start = time.perf_counter()
        model.learn(num_steps, reset_num_timesteps=False)
        return time.perf_counter() - start

    train(WARMUP + 50)
    num_steps = max(50, round(100 * MIN_SECONDS / train(100)))
    print("ready", flush=True)
    for _ in sys.stdin:
        print(num_steps / train(num_steps), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
