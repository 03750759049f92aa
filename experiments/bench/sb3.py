"""Stable-Baselines3's PPO on CartPole, driven by `on_policy.py` through a pipe.

python -m experiments.bench.sb3 NUM_ENVS answers each line on stdin with its steps per second.
"""

import sys
import time

from experiments.bench.on_policy import EPOCHS, MIN_SECONDS, MINIBATCHES, UNROLL_LENGTH


def main(num_envs: int) -> None:
    from stable_baselines3 import PPO  # pyright: ignore[reportMissingImports]
    from stable_baselines3.common.env_util import (  # pyright: ignore[reportMissingImports]
        make_vec_env,
    )

    batch = num_envs * UNROLL_LENGTH
    model = PPO(
        "MlpPolicy",  # two 64-wide tanh layers for the policy, two for the value
        make_vec_env("CartPole-v1", n_envs=num_envs),
        n_steps=UNROLL_LENGTH,
        n_epochs=EPOCHS,
        batch_size=batch // MINIBATCHES,
        ent_coef=0.01,
        device="cpu",
    )
    model.learn(batch)
    print("ready", flush=True)
    for _ in sys.stdin:
        start, steps = time.perf_counter(), 0
        while time.perf_counter() - start < MIN_SECONDS:
            model.learn(batch, reset_num_timesteps=False)
            steps += batch
        print(steps / (time.perf_counter() - start), flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]))
