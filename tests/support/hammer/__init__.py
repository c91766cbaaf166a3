"""The hammer: many processes on one store, with pauses, crashes and lost replies; then a checker.

from tests.support.hammer import Hammer, hammer
verdict = hammer(Hammer("sqlite:////tmp/keys.db", seconds=60))
"""

from tests.support.hammer.checker import Verdict
from tests.support.hammer.run import Hammer, hammer

__all__ = ["Hammer", "Verdict", "hammer"]
