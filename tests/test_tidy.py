"""The house rules that no linter knows: sizes, docstrings, and what must not be in a file."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections import Counter
from functools import cache
from pathlib import Path

import pytest
from tests.support.tracked_files import ROOT, text_of, tracked

MODULE_MAX_LINES = 400
FUNCTION_MAX_LINES = 60
FILE_MAX_BYTES = 500_000

# Path -> why it may be longer. Try to need none.
LONGER_MODULES: dict[str, str] = {}

MODULES = sorted(
    path.relative_to(ROOT).as_posix()
    for folder in ("src", "tests", "bench")
    for path in (ROOT / folder).rglob("*.py")
)
SOURCES = [name for name in MODULES if name.startswith("src/")]

DEFINITION = re.compile(r"( *)(?:(?:async )?def|(class)) ")

# Pieces are put together here so that this file does not match itself.
UNFINISHED = re.compile(r"\b(" + "|".join(["TO" + "DO", "FIX" + "ME", "XX" + "X"]) + r")\b")
BARE_IGNORE = re.compile(r"#\s*type:\s*ignore(?!\[)")
SOMEBODYS_FOLDER = re.compile(r"(?<![\w.:/-])/(?:" + "home|root|Users|work" + r")/[\w.]")
REGISTRY = re.compile(
    r"https?://[^\s/\"']*(?:" + "pypi|pythonhosted|npmjs|crates[.]io|anaconda|devpi" + r")"
)


@cache
def tree_of(name: str) -> ast.Module:
    return ast.parse(text_of(name))


@cache
def tracked_texts() -> tuple[tuple[str, str], ...]:
    texts = []
    for name in tracked():
        try:
            texts.append((name, text_of(name)))
        except UnicodeDecodeError:
            continue  # not text
    return tuple(texts)


def matches(pattern: re.Pattern[str], names_and_texts: list[tuple[str, str]]) -> list[str]:
    """Where the pattern occurs, as `file:line: text`; it has no anchors."""
    return [
        f"{name}:{number}: {line.strip()[:80]}"
        for name, text in names_and_texts
        if pattern.search(text)
        for number, line in enumerate(text.splitlines(), 1)
        if pattern.search(line)
    ]


def of_modules() -> list[tuple[str, str]]:
    return [(name, text_of(name)) for name in MODULES]


# --- sizes --------------------------------------------------------------------------------------


def test_there_is_something_to_check() -> None:
    assert len(SOURCES) > 20
    assert {"src/oncekey/core/state_machine.py", "tests/test_tidy.py"} <= set(MODULES)


def test_modules_are_short() -> None:
    lengths = {name: len(text_of(name).splitlines()) for name in MODULES}
    long = {name for name, length in lengths.items() if length > MODULE_MAX_LINES}
    assert long - LONGER_MODULES.keys() == set()
    assert LONGER_MODULES.keys() - long == set(), "no longer an exception: take it off the list"


def may_have_a_long_function(name: str) -> bool:
    """Whether so many lines are between a function and the next one outside of it, or the end of
    the file. Most modules need not be parsed, which would take most of the time of these tests."""
    lines = text_of(name).splitlines()
    begun: dict[int, int] = {}  # the indentation of functions that have not ended -> their lines
    for number, line in [*enumerate(lines), (len(lines), "def ")]:
        if found := DEFINITION.match(line):
            indent = len(found[1])
            ended = [begun.pop(own) for own in list(begun) if own >= indent]
            if any(number - first > FUNCTION_MAX_LINES for first in ended):
                return True
            if not found[2]:
                begun[indent] = number
    return False


@pytest.mark.parametrize(
    ("lines", "is_long"),
    [
        (["def one():", *["    pass"] * FUNCTION_MAX_LINES], True),
        (["def one():", *["    pass"] * (FUNCTION_MAX_LINES - 1), "class Two:"], False),
        (["class A:", "    async def one():", *["        pass"] * FUNCTION_MAX_LINES], True),
        (["def one():", "    def two():", *["        pass"] * (FUNCTION_MAX_LINES - 1)], True),
        (["class A:", *["    x = 1"] * FUNCTION_MAX_LINES], False),
    ],
)
def test_modules_with_a_long_function_are_parsed(
    lines: list[str], is_long: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(globals(), "text_of", lambda name: "\n".join(lines))
    assert may_have_a_long_function("any") is is_long


def test_functions_are_short() -> None:
    long = [
        f"{name}:{node.lineno} {node.name}"
        for name in filter(may_have_a_long_function, MODULES)
        for node in ast.walk(tree_of(name))
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
        and (node.end_lineno or 0) - node.lineno + 1 > FUNCTION_MAX_LINES
    ]
    assert long == []


def test_no_file_is_large() -> None:
    sizes = {name: (ROOT / name).stat().st_size for name in tracked()}
    assert {name: size for name, size in sizes.items() if size > FILE_MAX_BYTES} == {}


# --- names --------------------------------------------------------------------------------------

# The same name in two packages of one kind: the sync and the async form of a thing, or one module
# per adapter. A command's module is named like the command.
TWINS = (
    {"queues/blocking", "queues/aio"},
    {"queues/sqs", "queues/kafka", "queues/rabbitmq", "queues/redis_streams"},
    {"stores/memory", "stores/sqlite", "stores/postgres", "stores/redis", "stores/etcd"},
    {"stores/sqlite/caller_connections", "stores/postgres/caller_connections"},
    {"http/asgi", "http/wsgi", "http/fastapi", "http/flask", "http/django"},
    {"client/httpx", "client/requests"},
)
COMMANDS = "cli/commands"

# Name -> why it occurs more than once all the same.
REPEATED_NAMES = {
    "errors": "each layer's own errors, where its users look for them",
    # The skeleton that all brokers share, and that stores and frameworks have in their own way.
    "message": "what a broker's messages are made of; HTTP's own",
    "program": "what a store, or a broker, does, as a generator",
    "settings": "what the consumers of a broker are given; Django's own",
}

# Activities that are things too.
NOUNS_IN_ING: set[str] = set()

# A test file is named by the behaviour it covers.
VAGUE_TEST_NAMES = re.compile(r"_(corners|odd_input|late|given|matrix|kinds|misc|more|\d+)$")

# Words that were replaced by the field's own, and their replacements.
REPLACED_WORDS = {
    "colour": "sync and async",
    "colours": "sync and async",
    "lane": "batch in flight",
    "lanes": "max_in_flight",
    "errand": "logical request",
    "agenda": "watchlist",
    "enlist": "join the caller's transaction",
    "enlisted": "caller transaction",
    "heart": "heartbeat",
    "stone": "tombstone",
    "door": "endpoint wrapper",
    "bite": "batch",
    "crew": "workers",
}
WORDS = re.compile(r"\b(" + "|".join(REPLACED_WORDS) + r")\b", re.IGNORECASE)


def base_names() -> dict[str, list[str]]:
    """Module name -> the packages that have one, below src/oncekey."""
    found: dict[str, list[str]] = {}
    for name in SOURCES:
        path = Path(name.removeprefix("src/").removeprefix("oncekey/"))
        if not path.stem.startswith("__"):
            found.setdefault(path.stem, []).append(path.parent.as_posix())
    return found


def is_repeated(packages: list[str]) -> bool:
    others = {package for package in packages if package != COMMANDS}
    return len(others) > 1 and not any(others <= twins for twins in TWINS)


def test_a_module_name_occurs_once() -> None:
    repeated = {name: packages for name, packages in base_names().items() if is_repeated(packages)}
    unknown = {name: where for name, where in repeated.items() if name not in REPEATED_NAMES}
    assert unknown == {}, "name each module by what only it holds"
    assert REPEATED_NAMES.keys() - repeated.keys() == set(), "no longer repeated: take it off"


def test_modules_are_named_by_nouns() -> None:
    activities = [
        name
        for name in MODULES
        if Path(name).stem.endswith("ing") and Path(name).stem not in NOUNS_IN_ING
    ]
    assert activities == [], "name a module by what it holds, not by an activity"


def test_test_files_are_named_by_behaviour() -> None:
    assert [name for name in MODULES if VAGUE_TEST_NAMES.search(Path(name).stem)] == []


def test_replaced_words_do_not_come_back() -> None:
    files = [
        (name, text)
        for name, text in tracked_texts()
        if name.startswith("src/") and name.endswith((".py", ".sql"))
    ]
    assert matches(WORDS, files) == [], f"use the field's word: {REPLACED_WORDS}"


# --- words --------------------------------------------------------------------------------------


def docstring_of(name: str) -> str:
    """The docstring of a module, which is its first token that is not a comment."""
    for token in tokenize.generate_tokens(io.StringIO(text_of(name)).readline):
        if token.type == tokenize.STRING:
            return str(ast.literal_eval(token.string))
        if token.type not in (tokenize.COMMENT, tokenize.NL):
            break
    return ""


def test_every_module_says_what_it_owns_in_words_of_its_own() -> None:
    docs = {name: docstring_of(name) for name in SOURCES}
    assert [name for name, doc in docs.items() if len(doc) < 10] == []
    copies = [doc for doc, count in Counter(docs.values()).items() if count > 1]
    assert copies == []


def test_nothing_is_left_unfinished() -> None:
    assert matches(UNFINISHED, of_modules()) == []


def test_every_ignored_type_error_says_which() -> None:
    assert matches(BARE_IGNORE, of_modules()) == []


def _may_print(name: str) -> bool:
    return name.startswith("src/oncekey/cli/")


def test_only_the_command_line_prints() -> None:
    printing = [
        f"{name}:{node.lineno}"
        for name in SOURCES
        if not _may_print(name) and "print(" in text_of(name)
        for node in ast.walk(tree_of(name))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id == "print"
    ]
    assert printing == []


# What is private in an engine: surfaces go through engine/port.py.
ENGINE_PRIVATE = re.compile(r"once\._[a-z]")


def test_only_the_engine_reaches_into_an_engine() -> None:
    above = [
        (name, text)
        for name, text in of_modules()
        if name.startswith("src/oncekey/") and not name.startswith("src/oncekey/engine/")
    ]
    assert matches(ENGINE_PRIVATE, above) == []


# --- what must not be in a repository -------------------------------------------------------------


def test_no_file_names_somebodys_folder() -> None:
    assert matches(SOMEBODYS_FOLDER, list(tracked_texts())) == []


# The project has no site and no place at a code host yet.
INVENTED_ADDRESS = re.compile(r"github\.(io|com)/oncekey|oncekey\.github")


def test_no_file_has_an_address_that_does_not_exist() -> None:
    texts = [pair for pair in tracked_texts() if pair[0] != "tests/test_tidy.py"]
    assert matches(INVENTED_ADDRESS, texts) == []


def test_no_file_names_a_package_registry() -> None:
    assert matches(REGISTRY, list(tracked_texts())) == []


@pytest.mark.parametrize(
    ("pattern", "bad", "good"),
    [
        (UNFINISHED, "# TO" + "DO: later", "a method"),
        (WORDS, "of either Colour", "a heartbeat and a tombstone"),
        (VAGUE_TEST_NAMES, "test_flow_late", "test_latency"),
        (ENGINE_PRIVATE, "self.once._runner", "self.once.run"),
        (BARE_IGNORE, "x = 1  # type: " + "ignore", "x = 1  # type: " + "ignore[misc]"),
        (SOMEBODYS_FOLDER, 'open("/ho' + 'me/jo/x")', "the tests/home/page"),
        (SOMEBODYS_FOLDER, "at /wo" + "rk/main", "https://example.org/work/main"),
        (INVENTED_ADDRESS, "see https://github.com/oncekey/oncekey", "pip install oncekey"),
        (REGISTRY, "https://py" + "pi.org/simple", "https://example.org/pypi"),
        (REGISTRY, "see https://files.python" + "hosted.org/x", "pip install oncekey"),
    ],
)
def test_the_patterns_find_what_they_are_for(pattern: re.Pattern[str], bad: str, good: str) -> None:
    assert pattern.search(bad)
    assert not pattern.search(good)
