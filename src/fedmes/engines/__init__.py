"""Where clients run. Every engine walks the same plans and gives the same results."""
