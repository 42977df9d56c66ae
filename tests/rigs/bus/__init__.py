"""What tests do to a bus without our own code: bare clients, and servers that misbehave."""
