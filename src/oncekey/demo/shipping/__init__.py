"""Orders are shipped by consumers of a queue, which are processes and can be killed."""
