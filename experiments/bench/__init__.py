"""Speed against peers and baselines, each measured beside the other in the same run."""
