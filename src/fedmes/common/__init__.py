"""Small tools that know nothing of federated learning: whole files, size checks, progress bars,
keyed randomness."""
