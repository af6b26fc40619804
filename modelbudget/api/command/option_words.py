"""Words of a command line: options for the fields and arguments that Python's interface takes."""

import re
from collections.abc import Mapping
from typing import Any

NAMED = ("batch", "length", "dtype", "implementation", "weights", "adapter", "optimizer")
"""Fields that have an option of their name."""
_CODE = re.compile(r"`(?!modelbudget )(?:(\w+)\((.*?)\)|([^`()]+))`")
"""What a message of the library offers: a call with its arguments, or arguments or fields alone."""
_ARGUMENT = re.compile(r"^\w+\(\): (\w+) = ")
"""How a message of the library begins about an argument of a function."""
OF_FUNCTIONS = {
    *("answer", "devices", "draft", "engine_share", "engine_sleeps", "model", "module"),
    *("mmproj", "reference", "reserve", "reward"),
}
"""Arguments of the library that are no fields, and have an option of their name."""


def with_options(message: str, device: str = "fit") -> str:
    """Return a message of the library with options in place of its code, `devices=4` or `fit()`.

    `device`: the option that names the accelerator.
    """

    def words(code: re.Match) -> str:
        function, arguments, alone = code.groups()
        if function is None:
            return _option_of(alone, device)
        options = (_option_of(option, device) for option in arguments.split(", ") if option)
        return " ".join([f"--{function}", *options])

    return _CODE.sub(words, _ARGUMENT.sub(r"`\1` ", message))


def _option_of(code: str, device: str) -> str:
    """Return the words of a command line for an argument, fields with values, or a value."""
    name, equals, value = code.partition("=")
    match name:
        case "training":
            return "--train" if value == "True" else "--inference"
        case "gguf":
            return f"--file gguf --format {value}"
        case "accelerator":
            name = device
        case _ if name not in OF_FUNCTIONS and name not in NAMED:
            return f"--set {quoted(code)}" if equals else code
    return f"--{name.replace('_', '-')}{equals and ' '}{value}"


def repeated(settings: Mapping[str, Any], **options: Any) -> str:
    """Return the words that set the same fields, and options that have a value, in a command.

    An engine has an implementation of its own.
    """
    named = {name: settings[name] for name in NAMED if name in settings}
    if "serve" in options:
        named.pop("implementation", None)
    words = [
        f" --{name} {quoted(value)}"
        for name, value in (options | named).items()
        if value and (name, value) != ("devices", 1)
    ]
    fields = ", ".join(
        f"{name}={str(value).lower() if isinstance(value, bool) else value}"
        for name, value in settings.items()
        if name not in NAMED
    )
    return "".join(words) + (f" --set {quoted(fields)}" if fields else "")


def quoted(text: Any) -> str:
    """Return a word of a command, in quotes where it has a space."""
    return f'"{text}"' if " " in str(text) else str(text)
