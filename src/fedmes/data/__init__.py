"""From files to one array of samples with labels; nothing here knows clients or tasks."""
