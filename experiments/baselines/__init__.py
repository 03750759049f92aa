"""What others published, what we got, and the comparison."""
