"""The same payments API without oncekey, as tutorials write it: look the key up, run, store it."""
