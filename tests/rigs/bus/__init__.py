"""What tests do to a bus without localpuppet's code: bare clients, and servers that misbehave."""
