"""One file per algorithm: arrays in, `(loss, metrics)` out; no networks, no state.

vpg    the policy gradient, and the weights its log-probs can be multiplied with
trpo   the importance-weighted surrogate, and the trust-region step that maximises it
ppo    the clipped surrogate
value  squared error of a value function, clipped or not
dqn    Q-learning on the actions taken, and its targets
c51    the same for distributions over atoms, and the projection onto them
ddpg   one critic, and an actor that climbs it
td3    two critics, the smaller of which sets the targets
sac    the same with an entropy bonus; an actor and a temperature
discrete_sac  sac with expectations over discrete actions

Every loss is elementwise maths on any shape, then one masked sum over an explicit `denominator`;
its metrics are divided by the same one, so that both of them add up over micro-batches.
`log_probs`, `values` and `q` get a gradient; advantages, targets and the behaviour policy never do.
`*_targets` return what the critics' losses take, and hold it constant as well.
"""
