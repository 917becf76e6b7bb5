"""Clients at sites, reached through Flower."""
