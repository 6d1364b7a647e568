"""`phloem tree`: a server's prefix cache, drawn in the terminal."""
