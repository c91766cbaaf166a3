"""The demo: a payments API guarded by oncekey, a payment provider behind it, a page that shows
both, and scenarios that try hard to charge somebody twice. All servers listen on the loopback only.

It needs `oncekey[demo]`. The command is in `oncekey.cli`; nothing here prints. This module itself
imports no package of the extra, so that the command can always name `DemoFailed`.
"""


class DemoFailed(Exception):
    """The demo itself could not run. (A broken promise is a result, not this error.)"""
