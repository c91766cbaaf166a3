"""The page at `/`: what it shows, and the few requests it makes."""
