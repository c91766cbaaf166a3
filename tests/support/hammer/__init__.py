"""The hammer: many processes on one store, with pauses, crashes and lost replies; then a checker.

from tests.support.hammer import HammerPlan, run_hammer
report = run_hammer(HammerPlan("sqlite:////tmp/keys.db", seconds=60))
"""

from tests.support.hammer.checker import HammerReport
from tests.support.hammer.hammer_run import HammerPlan, run_hammer

__all__ = ["HammerPlan", "HammerReport", "run_hammer"]
