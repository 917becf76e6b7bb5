"""Small tools that know nothing of federated learning: files, size checks, bars, random keys."""
