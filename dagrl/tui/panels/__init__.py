"""The parts of the live view: each draws one from the state, the info, its size and the time, and knows no other."""
