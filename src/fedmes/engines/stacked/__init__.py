"""All clients of all seeds as one computation."""
