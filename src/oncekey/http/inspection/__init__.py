"""Looks at an app from outside: its routes, how they are guarded, and the policy it publishes."""
