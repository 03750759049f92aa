"""Maths on arrays: no parameters, no networks, no state.

checks         what a function does with its arguments first: shapes, float32
masked         sums, means, whitening and explained variance over unmasked elements
returns        discounted and lambda returns, generalised advantages, n-step sums
bellman        one-step targets of value functions
groups         advantages of the completions of one prompt against each other
kl             per-sample estimators of a KL divergence
distributions  categorical, Gaussian and tanh-Gaussian distributions over actions,
               written in categorical, gaussian and tanh_gaussian
noise          exploration: noise on actions, epsilon-greedy choice, a decaying schedule
solve          conjugate gradient, Fisher-vector products, line search
tabular        value iteration, the exact answer on small problems
moments        running mean and variance of a stream, which can be merged
tree           updates of whole parameter trees
log_probs      log-probabilities of tokens, from logits or straight from hidden states,
               and the exact divergence of two language models
"""
