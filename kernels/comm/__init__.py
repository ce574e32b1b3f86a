"""Between GPUs: groups, exchange, memory of peers, their death."""
