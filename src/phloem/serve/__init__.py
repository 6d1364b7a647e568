"""`phloem serve`: all five services in one process, on the in-memory bus."""
