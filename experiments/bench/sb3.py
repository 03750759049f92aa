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

    def train(num_updates: int) -> float:
        start = time.perf_counter()
        model.learn(num_updates * batch, reset_num_timesteps=False)
        return time.perf_counter() - start

    train(1)
    num_updates = max(1, round(MIN_SECONDS / train(1)))  # one call: each has a cost of its own
    print("ready", flush=True)
    for _ in sys.stdin:
        print(num_updates * batch / train(num_updates), flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]))
