#!/usr/bin/env python3
"""Checks that each call that a simulation must not make aborts a program that is linked like parley_sim.

    run.py PROGRAM      PROGRAM is asks.cpp
"""

import signal
import subprocess
import sys

ASKED = ("clock_gettime", "gettimeofday", "timespec_get", "time", "clock", "getrandom", "getentropy", "rand", "rand_r",
         "random", "drand48", "RAND_bytes", "steady_clock", "system_clock", "random_device")


def main():
    wrong = []
    for word in ("nothing", *ASKED):
        ended = subprocess.run([sys.argv[1], word], capture_output=True, text=True)
        refused = ended.returncode == -signal.SIGABRT and "a simulation may not depend on it" in ended.stderr
        if refused != (word != "nothing"):
            wrong.append(f"{word}: status {ended.returncode}, {ended.stderr.strip() or 'nothing said'}")
    print("\n".join(wrong) or f"{len(ASKED)} ways to ask for time or chance end the program")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
