"""Workers: they take jobs, run handlers, and see to it that every job ends in a state."""
