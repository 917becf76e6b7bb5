"""From a configuration to a result."""
