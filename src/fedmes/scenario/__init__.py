"""Who has which samples of which task and when, and what each client will do with them: all that is
decided before training."""
