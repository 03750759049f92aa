"""One file per algorithm: arrays in, `(loss, metrics)` out; no networks, no state.

vpg    the policy gradient, and the weights its log-probs can be multiplied with
trpo   the importance-weighted surrogate, and the trust-region step that maximises it
ppo    the clipped surrogate
value  squared error of a value function, clipped or not

Every loss is elementwise maths on any shape, then one masked sum over an explicit `denominator`;
its metrics are divided by the same one, so that both of them add up over micro-batches.
`log_probs` and `values` get a gradient; advantages, targets and the behaviour policy never do.
"""
