"""Maths on arrays: no parameters, no networks, no state.

checks     shape checks at trace time, shared by ops and losses
masked     sums, means, whitening and explained variance over unmasked elements
returns    discounted and lambda returns, generalised advantages, n-step windows
groups     advantages relative to a group of completions of one prompt
kl         per-sample estimators of a KL divergence
distributions  categorical, Gaussian and tanh-Gaussian action distributions
solve      conjugate gradient, Fisher-vector products, line search, value iteration
moments    running mean and variance that can be merged
tree       updates of whole parameter trees
log_probs  log-probabilities of tokens, from logits or straight from hidden states
"""
