"""`phloem up`: run a compose file's services as local processes, without Docker."""
