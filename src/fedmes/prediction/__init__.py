"""A trained client answers about new samples."""
