"""Networks chosen by the environment's spec and the config."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments.configs import defaults
from rljax.nets.actor_critic import make_actor_critic
from rljax.ops.distributions import CATEGORICAL, GAUSSIAN
from rljax.types import Box, Discrete, EnvSpec

REAL = Box(np.float32([-1, -1]), np.float32([1, 1]))


def spec(action_space, observation_shape=(3,), dtype=np.float32):
    return EnvSpec("Test-v0", observation_shape, dtype, action_space, 10)


def net(**changes):
    config = defaults.mlp()
    config.hidden_sizes = (4,)
    config.update(changes)
    return config


def test_discrete_actions_get_a_categorical_policy(key):
    nets = make_actor_critic(net(), spec(Discrete(5)))
    assert nets.distribution is CATEGORICAL
    assert nets.action_size == 5
    observations = jnp.ones((7, 2, 3))
    assert nets.policy.apply(nets.policy.init(key), observations).shape == (7, 2, 5)
    assert nets.value.apply(nets.value.init(key), observations).shape == (7, 2)


@pytest.mark.parametrize("log_std", ["parameter", "network"])
def test_real_actions_get_a_gaussian_policy(log_std, key):
    nets = make_actor_critic(net(log_std=log_std, log_std_init=-1.0), spec(REAL))
    assert nets.distribution is GAUSSIAN
    assert nets.action_size == 2
    mean, log_stds = nets.policy.apply(nets.policy.init(key), jnp.zeros((7, 3)))
    np.testing.assert_array_equal(mean, np.zeros((7, 2)))
    np.testing.assert_allclose(log_stds, np.full((7, 2), -1.0), rtol=1e-6)


def test_hidden_sizes_and_activation_come_from_the_config(key):
    nets = make_actor_critic(net(hidden_sizes=(6, 4), activation="relu"), spec(Discrete(2)))
    shapes = jax.tree.map(jnp.shape, nets.policy.init(key))
    assert shapes["trunk"]["hidden_0"]["kernel"] == (3, 6)
    assert shapes["trunk"]["hidden_1"]["kernel"] == (6, 4)
    assert shapes["logits"]["kernel"] == (2, 4)  # [outputs, features]
    # relu and zero biases: a policy that is linear along a ray; tanh would saturate
    params = nets.policy.init(key)
    x = jnp.array([1.0, -2.0, 0.5])
    np.testing.assert_allclose(
        nets.policy.apply(params, 100 * x), 100 * nets.policy.apply(params, x), rtol=1e-4
    )


def test_observations_of_any_shape_and_dtype_are_flattened(key):
    images = make_actor_critic(net(), spec(Discrete(2), (2, 3), np.uint8))
    rows = make_actor_critic(net(), spec(Discrete(2), (6,)))
    params = images.policy.init(key)
    image = np.random.default_rng(0).integers(0, 255, (4, 5, 2, 3), np.uint8)
    np.testing.assert_array_equal(
        images.policy.apply(params, jnp.asarray(image)),
        rows.policy.apply(params, jnp.float32(image.reshape(4, 5, 6))),
    )
    assert images.value.apply(images.value.init(key), jnp.asarray(image[0, 0])).shape == ()


def test_table(key):
    nets = make_actor_critic(net(name="tabular"), spec(Discrete(2), (5,)))
    assert nets.distribution is CATEGORICAL
    assert nets.action_size == 2
    one_hot = jnp.eye(5)
    np.testing.assert_array_equal(
        nets.policy.apply(nets.policy.init(key), one_hot), np.zeros((5, 2))
    )
    np.testing.assert_array_equal(nets.value.apply(nets.value.init(key), one_hot), np.zeros(5))


@pytest.mark.errors
@pytest.mark.parametrize(
    ("changes", "action_space", "words"),
    [
        ({"name": "transformer"}, Discrete(2), ("config.net.name", "'transformer'", "mlp")),
        ({"activation": "sine"}, Discrete(2), ("config.net.activation", "'sine'", "tanh")),
        ({"log_std": "fixed"}, REAL, ("config.net.log_std", "'fixed'", "parameter, network")),
        ({"hidden_sizes": (64, 0)}, Discrete(2), ("config.net.hidden_sizes", "(64, 0)")),
        ({"name": "tabular"}, REAL, ("config.net.name", "tabular", "Test-v0", "Box")),
    ],
)
def test_bad_settings_are_named_in_one_line(changes, action_space, words):
    with pytest.raises(ValueError, match=r"config\.net\.") as error:
        make_actor_critic(net(**changes), spec(action_space))
    message = str(error.value)
    assert "\n" not in message
    for word in words:
        assert word in message


@pytest.mark.errors
def test_table_needs_rows():
    with pytest.raises(ValueError, match=r"tabular.*\(2, 3\)"):
        make_actor_critic(net(name="tabular"), spec(Discrete(2), (2, 3)))
