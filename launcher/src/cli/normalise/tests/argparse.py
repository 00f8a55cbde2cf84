"""Answers command lines as torchrun's own parser reads them.

The first line of standard input is the list of options, each further line a command line, all in JSON. An answer is
{"refused": text}, {"text": option} where an option prints a text, or {"options": …, "program": …}.
"""

import argparse
import json
import sys


class Refusal(Exception):
    pass


class Text(Exception):
    pass


class Parser(argparse.ArgumentParser):
    def error(self, message):
        raise Refusal(message)


def checked(name):
    """The type of this name: a value of it stays as it was written."""

    def convert(text):
        {"int": int, "float": float}[name](text)
        return text

    convert.__name__ = name
    return convert


class Store(argparse.Action):
    def __call__(self, parser, namespace, values, option_string=None):
        if self.metavar == "text":
            raise Text(self.dest)
        if self.nargs == 0:
            values = ""
        # Python 3.11 drops a glued `--`, as in `--role=--`, and leaves an empty list.
        namespace.options.append([self.dest, "--" if values == [] else values])


def build(options):
    parser = Parser(add_help=False)
    for option in options:
        names = option["spellings"]
        if option["short"]:
            names = ["-" + option["short"], *names]
        extra = {"nargs": 0} if option["flag"] else {}
        if isinstance(option["type"], list):
            extra["choices"] = option["type"]
        elif option["type"]:
            extra["type"] = checked(option["type"])
        metavar = "text" if option["text"] else None
        parser.add_argument(*names, dest=option["long"], action=Store, metavar=metavar, **extra)
    parser.add_argument("training_script")
    parser.add_argument("training_script_args", nargs=argparse.REMAINDER)
    return parser


def answer(parser, words):
    namespace = argparse.Namespace(options=[])
    try:
        parser.parse_args(words, namespace)
    except Refusal as refusal:
        return {"refused": str(refusal)}
    except Text as text:
        return {"text": str(text)}
    return {"options": namespace.options, "program": [namespace.training_script, *namespace.training_script_args]}


parser = build(json.loads(sys.stdin.readline()))
print(json.dumps(sys.version.split()[0]), flush=True)
for line in sys.stdin:
    print(json.dumps(answer(parser, json.loads(line))), flush=False)
    sys.stdout.flush()
