"""Messages with headers that name a channel or a recipient: reasoning, calls and answers."""
