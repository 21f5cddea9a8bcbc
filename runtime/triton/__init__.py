"""The two models of a Triton model repository, as Triton's Python backend runs them; nothing else imports them."""
