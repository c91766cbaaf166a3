"""The hammer: many processes on one store, with pauses, crashes and lost replies; then a checker.

from oncekey.testing.hammer import Hammer, hammer
verdict = hammer(Hammer("sqlite:////tmp/keys.db", seconds=60))
"""

from oncekey.testing.hammer.checker import Verdict
from oncekey.testing.hammer.run import Hammer, hammer

__all__ = ["Hammer", "Verdict", "hammer"]
