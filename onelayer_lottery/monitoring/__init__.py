"""Watch a training: log its progress, warn, or stop it."""
