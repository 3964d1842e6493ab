"""How many replicas a demand takes, drafted or plain, and what they cost."""
