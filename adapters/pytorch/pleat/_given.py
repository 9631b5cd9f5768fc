"""What a program gives Pleat as arguments, checked before anything is done with it."""

import collections.abc
import operator


def settings(conf):
    """Settings as PLEAT_CONF has them: a text, None, or a dict of them. TypeError."""
    if conf is None or isinstance(conf, str):
        return conf or ""
    if not isinstance(conf, collections.abc.Mapping):
        raise TypeError("pleat: conf is a text such as 'small:64k,learn:off' or a dict such as {'small': '64k'}, not %r"
                        % (conf,))
    return ",".join("%s:%s" % (key, {True: "on", False: "off"}[value] if isinstance(value, bool) else value)
                    for key, value in conf.items())


def count(name, value, least=0, most=(1 << 32) - 1):
    """A whole number. TypeError, ValueError."""
    try:
        number = operator.index(value)
    except TypeError:
        raise TypeError("pleat: %s is a whole number, not %r" % (name, value)) from None
    if not least <= number <= most:
        raise ValueError("pleat: %s is a whole number from %d to %d, not %d" % (name, least, most, number))
    return number


def check_switch(name, value):
    """TypeError."""
    if not isinstance(value, bool):
        raise TypeError("pleat: %s is True or False, not %r" % (name, value))
