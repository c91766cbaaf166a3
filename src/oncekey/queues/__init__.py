"""Queue consumers: the message is the request, redelivery is the retry."""
