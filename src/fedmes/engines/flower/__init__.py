"""Clients on sites of their own, reached through Flower."""
