"""The demo: a payments API guarded by oncekey, a payment provider behind it, a page to watch both,
and scenarios that try hard to charge somebody twice. Everything is on the loopback.

It needs `oncekey[demo]`. The command is in `oncekey.cli`; nothing here prints.
"""
