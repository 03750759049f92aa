"""The fields of `config.algo` for each algorithm; config files take them from `defaults`."""

from typing import Any

from ml_collections import ConfigDict
from ml_collections.config_dict import placeholder

Config = Any  # a ConfigDict; type checkers do not know its fields


def dqn() -> Config:
    algo: Config = ConfigDict()
    algo.name = "dqn"
    algo.discount = 0.99
    algo.n_step = 1
    algo.double = True
    algo.dueling = False
    algo.huber_delta = 1.0  # or None: the squared error
    algo.target_rate = 1.0  # share of the network that the target takes over ...
    algo.target_period = 250  # ... every so many gradient steps
    algo.epsilon_start = 1.0
    algo.epsilon_end = 0.05
    algo.epsilon_steps = 10_000  # environment steps, linearly
    return algo


def c51() -> Config:
    algo = dqn()
    algo.name = "c51"
    del algo.huber_delta
    algo.double = False
    algo.num_atoms = 51
    algo.value_min = -10.0
    algo.value_max = 10.0
    return algo


def ddpg() -> Config:
    algo: Config = ConfigDict()
    algo.name = "ddpg"
    algo.discount = 0.99
    algo.n_step = 1
    algo.target_rate = 0.005
    algo.noise = "gaussian"  # or "ou": Ornstein-Uhlenbeck, remembered within an episode
    algo.noise_scale = 0.1  # of half the width of the actions' box
    return algo


def td3() -> Config:
    algo = ddpg()
    algo.name = "td3"
    algo.policy_delay = 2  # gradient steps of the critics for one of the actor and the targets
    algo.target_noise = 0.2  # of half the width, as the next
    algo.target_noise_clip = 0.5
    return algo


def sac() -> Config:
    algo: Config = ConfigDict()
    algo.name = "sac"
    algo.discount = 0.99
    algo.n_step = 1
    algo.target_rate = 0.005
    algo.temperature = placeholder(float)  # reward per nat; None: learned
    algo.init_temperature = 1.0
    algo.target_entropy = placeholder(float)  # nats; None: see rljax/algos/sac.py
    return algo


def vpg() -> Config:
    algo: Config = ConfigDict()
    algo.name = "vpg"
    algo.weights = "advantage"  # or "return", "reward_to_go", "reward_to_go_baseline"
    algo.discount = 0.99
    algo.lambda_ = 0.97
    algo.normalize_advantages = True
    algo.entropy_coef = 0.0
    algo.value_learning_rate = 1e-3
    algo.value_iterations = 80
    return algo


def a2c() -> Config:
    algo: Config = ConfigDict()
    algo.name = "a2c"
    algo.discount = 0.99
    algo.lambda_ = 1.0
    algo.normalize_advantages = False
    algo.entropy_coef = 0.0
    algo.value_coef = 0.5
    return algo


def trpo() -> Config:
    algo: Config = ConfigDict()
    algo.name = "trpo"
    algo.discount = 0.99
    algo.lambda_ = 0.97
    algo.normalize_advantages = True
    algo.max_kl = 0.01
    algo.damping = 0.1
    algo.cg_iterations = 10
    algo.backtrack_ratio = 0.8
    algo.max_backtracks = 10
    algo.value_iterations = 80
    return algo


def ppo() -> Config:
    algo: Config = ConfigDict()
    algo.name = "ppo"
    algo.discount = 0.99
    algo.lambda_ = 0.95
    algo.clip = 0.2
    algo.clip_high = placeholder(float)  # upper side of the band, if it is not `clip`
    algo.dual_clip = placeholder(float)
    algo.value_clip = placeholder(float)
    algo.epochs = 4
    algo.minibatches = 4
    algo.normalize_advantages = "minibatch"  # or "batch", "none"
    algo.entropy_coef = 0.0
    algo.value_coef = 0.5
    algo.target_kl = placeholder(float)  # nats; epochs stop beyond kl_stop_factor x target_kl
    algo.kl_stop_factor = 1.5
    algo.kl_penalty = "none"  # or "fixed", "adaptive" (towards target_kl), instead of the clip
    algo.kl_coef = 1.0  # weight of that penalty, at first
    return algo
