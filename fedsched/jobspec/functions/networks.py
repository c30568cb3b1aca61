"""Functions of IP networks."""

from __future__ import annotations

import ipaddress

from fedsched.jobspec.context import ArgumentFailed, FunctionFailed
from fedsched.jobspec.functions.registry import function, whole
from fedsched.jobspec.types import NUMBER, STRING
from fedsched.jobspec.values import Value, make_list, string

Network = ipaddress.IPv4Network | ipaddress.IPv6Network
_PREFIX = ("prefix", STRING)


@function("cidrhost", takes=(_PREFIX, ("hostnum", NUMBER)))
def cidrhost(prefix: Value, hostnum: Value) -> Value:
    """A host by number; negative ones count from the end."""
    network, wanted = _network(prefix.text), whole(hostnum)
    number = wanted + network.num_addresses if wanted < 0 else wanted
    if not 0 <= number < network.num_addresses:
        raise FunctionFailed(f"a prefix of {network.prefixlen} bits has no host number {wanted}")
    return string(str(network.network_address + number))


@function("cidrnetmask", takes=(_PREFIX,))
def cidrnetmask(prefix: Value) -> Value:
    return string(str(_network(prefix.text).netmask))


@function("cidrsubnet", takes=(_PREFIX, ("newbits", NUMBER), ("netnum", NUMBER)))
def cidrsubnet(prefix: Value, newbits: Value, netnum: Value) -> Value:
    network, bits, number = _network(prefix.text), whole(newbits), whole(netnum)
    if bits < 0 or network.prefixlen + bits > network.max_prefixlen:
        raise FunctionFailed(f"a prefix of {network.prefixlen} bits cannot be extended by {bits}")
    if not 0 <= number < 1 << bits:
        raise FunctionFailed(f"{bits} more bits have no subnet number {number}")
    length = network.prefixlen + bits
    address = network.network_address + (number << (network.max_prefixlen - length))
    return string(f"{address}/{length}")


@function("cidrsubnets", takes=(_PREFIX,), rest=("newbits", NUMBER))
def cidrsubnets(prefix: Value, *newbits: Value) -> Value:
    """Subnets one after another, each at the next place where its size allows it."""
    try:
        network = _network(prefix.text)
    except FunctionFailed as error:
        raise ArgumentFailed(0, str(error)) from None
    first, end = int(network.network_address), int(network.network_address) + network.num_addresses
    at, found = first, []
    for argument, value in enumerate(newbits, 1):
        bits = whole(value, argument=argument)
        length = network.prefixlen + bits
        if bits < 1:
            raise ArgumentFailed(argument, "a prefix is extended by one bit at least")
        if bits > 32 or length > network.max_prefixlen:
            raise ArgumentFailed(argument, f"a prefix of {network.prefixlen} bits cannot be extended by {bits}")
        size = 1 << (network.max_prefixlen - length)
        at = first + -(-(at - first) // size) * size
        if at + size > end:
            raise ArgumentFailed(argument, f"no room is left for a subnet with a prefix of {length} bits")
        found.append(string(f"{type(network.network_address)(at)}/{length}"))
        at += size
    return make_list(STRING, found)


def _network(text: str) -> Network:
    _, slash, length = text.partition("/")
    if slash and length.isdigit() and length.isascii():
        try:
            return ipaddress.ip_network(text, strict=False)
        except ValueError:
            pass
    raise FunctionFailed(f"{text[:60]!r} is no network; write an address and a prefix length, such as 10.0.0.0/8")
