"""The one door to anything unpredictable: clocks, chance, ids."""

from fedsched.env.env import Chance, Env
from fedsched.env.fixed import FixedEnv
from fedsched.env.real import RealEnv

__all__ = ["Chance", "Env", "FixedEnv", "RealEnv"]
