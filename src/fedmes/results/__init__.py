"""What a run leaves on disk, and every number made of it."""
