"""`oncekey demo`: six scenarios played for real, and checked against what was really done."""
