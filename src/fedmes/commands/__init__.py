"""The commands, by subject. torch is imported only by those that need it, so that `--help` answers at once."""
