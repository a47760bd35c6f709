"""Two network namespaces that stand for two hosts, for tests and benchmarks. A program in one of them sees only that one's network.

    with hosts.two() as spaces:              # raises hosts.Missing, with the reason, if the machine does not permit it
        hosts.join_by_cable(spaces)          # or: with hosts.joined_by(forwarder, spaces, "--delay_us", "500"):
        subprocess.run(hosts.command(spaces[0], program))
        hosts.start_rank(spaces, 1, hosts.job_variables(folder), program)

The first host has the address hosts.ADDRESSES[0] and the name host0; the second has hosts.ADDRESSES[1] and host1.
"""

import contextlib
import os
import pathlib
import secrets
import shutil
import subprocess
import time

ADDRESSES = ("10.213.7.1", "10.213.7.2")
LIMIT_S = 20
SKIPPED = 77


class Missing(Exception):
    """The machine lacks something, or does not permit it."""


def ip(*words, quiet=False):
    return subprocess.run(["ip", *words], stderr=subprocess.DEVNULL if quiet else None).returncode == 0


@contextlib.contextmanager
def two():
    if not shutil.which("ip"):
        raise Missing("there is no ip (iproute2)")
    spaces = [f"parley{os.getpid()}{side}" for side in "ab"]
    if not ip("netns", "add", spaces[0], quiet=True):
        raise Missing("this user may not make network namespaces")
    try:
        if not ip("netns", "add", spaces[1]):
            raise Missing("there can be no second network namespace")
        yield spaces
    finally:
        for space in spaces:
            ip("netns", "del", space, quiet=True)


def bring_up(spaces, devices, *mtu):
    for space, device, address in zip(spaces, devices, ADDRESSES):
        ip("-n", space, "addr", "add", f"{address}/24", "dev", device)
        ip("-n", space, "link", "set", device, "up", *mtu)
        ip("-n", space, "link", "set", "lo", "up")
    for space, device in zip(spaces, devices):  # UCX ignores an interface without a carrier
        until = time.monotonic() + LIMIT_S
        while "LOWER_UP" not in subprocess.run(["ip", "-n", space, "link", "show", "dev", device],
                                               capture_output=True, text=True).stdout:
            if time.monotonic() > until:
                raise Missing(f"{device} does not come up")
            time.sleep(0.02)


def join_by_cable(spaces):
    """Joins the namespaces by a virtual cable without delay or loss."""
    if not ip("link", "add", "pa", "netns", spaces[0], "type", "veth", "peer", "name", "pb", "netns", spaces[1]):
        raise Missing("the two network namespaces cannot be joined")
    bring_up(spaces, ("pa", "pb"))
    for space, other in zip(spaces, reversed(ADDRESSES)):
        ip("-n", space, "route", "add", "default", "via", other)


def add_bridge(space):
    """Adds a bridge like a container engine's: up, with an address that no other host can reach. Not every kernel supports it."""
    if ip("-n", space, "link", "add", "bridge0", "type", "bridge", quiet=True):
        ip("-n", space, "addr", "add", "172.31.0.1/24", "dev", "bridge0")
        ip("-n", space, "link", "set", "bridge0", "up")


@contextlib.contextmanager
def joined_by(forwarder, spaces, *how):
    """Joins the namespaces by the program of forwarder.cpp, which delays, drops and reorders packets as the arguments `how` say."""
    process = subprocess.Popen([forwarder, *spaces, *how], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                               stderr=subprocess.PIPE, text=True)
    try:
        if process.stdout.readline() != "ready\n":
            why = process.stderr.read().strip()
            if process.wait() == SKIPPED:
                raise Missing(why)
            raise RuntimeError(why)
        bring_up(spaces, ("parley0", "parley0"), "mtu", "9000")
        yield
    finally:
        process.kill()
        process.wait()


def command(space, *words):
    return ["ip", "netns", "exec", space, *words]


def key_variables(folder):
    """Makes a job key in the folder. Returns the variables for the key and for two hosts on one machine."""
    key = pathlib.Path(folder, "key")
    key.touch(mode=0o600)
    key.write_bytes(secrets.token_bytes(32))
    return {"PARLEY_KEY_FILE": str(key), "UCX_TLS": "tcp,self"}  # without shared memory: real hosts share none, but the namespaces do


def job_variables(folder):
    """Returns the environment variables of a job with one rank on each host; makes its key in the folder."""
    return {"PARLEY_WORLD": "2", "PARLEY_LOCAL_RANK": "0", "PARLEY_LOCAL_SIZE": "1", "PARLEY_JOB": "2b",
            "PARLEY_RENDEZVOUS": f"{ADDRESSES[0]}:4711"} | key_variables(folder)


def names_file(folder, host):
    """Writes an /etc/hosts with both hosts; as on Debian, the own host has a loopback address. Returns its path."""
    names = pathlib.Path(folder, f"hosts{host}")
    addresses = [a if i != host else "127.0.1.1" for i, a in enumerate(ADDRESSES)]
    names.write_text("127.0.0.1 localhost\n" + "".join(f"{a} host{i}\n" for i, a in enumerate(addresses)))
    return str(names)


def on_host(spaces, host, program, names=""):
    """Returns the command that runs `program` there, in its own host-name, IPC and mount namespaces, with `names` as /etc/hosts."""
    here = 'hostname "$1"; [ -z "$2" ] || mount --bind "$2" /etc/hosts; shift 2; exec "$@"'
    return command(spaces[host], "unshare", "--uts", "--ipc", "--mount", "sh", "-c", here, "sh", f"host{host}", names,
                   *program)


def start_rank(spaces, rank, environment, *program, **how):
    """Starts the rank on the host of the same number."""
    return subprocess.Popen(on_host(spaces, rank, program), env=environment | {"PARLEY_RANK": str(rank)}, **how)
