"""Where clients run. Every engine follows the same plans and gives the same results."""
