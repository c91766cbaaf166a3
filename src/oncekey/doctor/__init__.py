"""`oncekey doctor`: what silently breaks the guarantee, found before it does.

    from oncekey.doctor import diagnose

    diagnosis = diagnose("postgresql://app@db/shop")
    for finding in diagnosis.problems:
        print(finding.severity, finding.check, finding.what, finding.mend)

Stores bring checks of their own (oncekey.stores.inspection). This package adds those that no store
can make: of what its records tell, of the app, and of proxies in front of it. It prints nothing.
"""

from oncekey.doctor.diagnosis import Diagnosis, diagnose

__all__ = ["Diagnosis", "diagnose"]
