# What our code uses of danube-client, which ships no types; written by hand.
from enum import IntEnum

class DispatchStrategy(IntEnum):
    NON_RELIABLE = 0
    RELIABLE = 1
