"""How commands of many attempts reach the store together."""
