"""A waiting room that admits a crowd fairly to something scarce, and the seats behind it."""
