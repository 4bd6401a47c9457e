"""Ways into existing frameworks; each module names the versions that it was tried with."""
