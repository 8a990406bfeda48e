"""As much of Lua as the scripts of the session guard need: they run as they are in the simulated Redis.

Locals, functions, ``if``, ``for`` with numbers, lists, ``redis.call``. Whatever else a script says raises
SyntaxError, so that a script which outgrows this is noticed at once.
"""

import math
import re
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, Final, NamedTuple

TOKEN: Final = re.compile(
    r"\s*(?:(?P<number>\d+)|(?P<name>[A-Za-z_]\w*)|'(?P<text>[^']*)'"
    r"|(?P<sign>\.\.|==|~=|<=|>=|[-+*/<>=#(){}\[\],.]))"
)
WORDS: Final = frozenset(
    (
        *("local", "function", "if", "then", "elseif", "else", "end", "for", "do", "return"),
        *("and", "or", "not", "nil", "true", "false"),
    )
)
LEVELS: Final = (
    ("or",),
    ("and",),
    ("<", ">", "<=", ">=", "~=", "=="),
    ("..",),
    ("+", "-"),
    ("*", "/"),
)
Call = Callable[..., Any]


class Token(NamedTuple):
    kind: str
    text: str


class Returned(Exception):
    """A function's end, with its value."""

    def __init__(self, value: Any) -> None:
        self.value = value


class Scope:
    """Names and their values, those around it behind them."""

    def __init__(self, around: "Scope | None" = None, **names: Any) -> None:
        self.names = names
        self._around = around

    def holder(self, name: str) -> "Scope | None":
        return self if name in self.names else self._around and self._around.holder(name)

    def value(self, name: str) -> Any:
        holder = self.holder(name)
        return None if holder is None else holder.names[name]


Expression = Callable[[Scope], Any]
Statement = Callable[[Scope], None]


class Parser:
    """Of one script."""

    def __init__(self, script: str) -> None:
        self._tokens, at, text = list[Token](), 0, script.rstrip()
        while at < len(text):
            found = TOKEN.match(text, at)
            if found is None:
                raise SyntaxError(f"this Lua is not known here: {text[at : at + 40]!r}")
            kind = str(found.lastgroup)
            word = found.group(kind)
            self._tokens.append(Token("word" if word in WORDS and kind == "name" else kind, word))
            at = found.end()
        self._at = 0

    # -- statements

    def block(self, *ends: str) -> Statement:
        """Up to one of these words, or the script's end."""
        statements = list[Statement]()
        while not self._is_end() and self._next().text not in ends:
            statements.append(self._statement())

        def run(scope: Scope) -> None:
            for each in statements:
                each(scope)

        return run

    def _statement(self) -> Statement:
        if self._takes("local"):
            return self._function() if self._takes("function") else self._local()
        if self._takes("if"):
            return self._if()
        if self._takes("for"):
            return self._for()
        if self._takes("return"):
            value = self._expression()

            def give(scope: Scope) -> None:
                raise Returned(value(scope))

            return give
        return self._call_or_assignment()

    def _local(self) -> Statement:
        names, values = [self._name()], list[Expression]()
        while self._takes(","):
            names.append(self._name())
        self._expect("=")
        values = self._list()

        def run(scope: Scope) -> None:
            scope.names.update(zip(names, [value(scope) for value in values], strict=True))

        return run

    def _function(self) -> Statement:
        name, parameters = self._name(), list[str]()
        self._expect("(")
        while not self._takes(")"):
            parameters.append(self._name())
            self._takes(",")
        body = self.block("end")
        self._expect("end")

        def run(scope: Scope) -> None:
            def call(*args: Any) -> Any:
                try:
                    body(Scope(scope, **dict(zip(parameters, args, strict=True))))
                except Returned as returned:
                    return returned.value
                return None

            scope.names[name] = call

        return run

    def _if(self) -> Statement:
        branches = list[tuple[Expression, Statement]]()
        while True:
            condition = self._expression()
            self._expect("then")
            branches.append((condition, self.block("elseif", "else", "end")))
            if not self._takes("elseif"):
                break
        if self._takes("else"):
            branches.append((lambda _: True, self.block("end")))
        self._expect("end")

        def run(scope: Scope) -> None:
            for condition, body in branches:
                if _is_true(condition(scope)):
                    body(Scope(scope))
                    return

        return run

    def _for(self) -> Statement:
        name = self._name()
        self._expect("=")
        bounds = self._list()
        self._expect("do")
        body = self.block("end")
        self._expect("end")

        def run(scope: Scope) -> None:
            first, last, *step = (bound(scope) for bound in bounds)
            for number in range(first, last + 1, *step):
                body(Scope(scope, **{name: number}))

        return run

    def _call_or_assignment(self) -> Statement:
        targets = [self._suffixed()]
        while self._takes(","):
            targets.append(self._suffixed())
        if not self._takes("="):
            ((call, put),) = targets
            if put is not _nowhere:
                raise SyntaxError("a statement is a call or an assignment")
            return lambda scope: call(scope) and None
        values = self._list()

        def run(scope: Scope) -> None:
            found = [value(scope) for value in values]
            for (_, put), value in zip(targets, found, strict=True):
                put(scope, value)

        return run

    # -- expressions

    def _list(self) -> list[Expression]:
        found = [self._expression()]
        while self._takes(","):
            found.append(self._expression())
        return found

    def _expression(self, level: int = 0) -> Expression:
        if level == len(LEVELS):
            return self._unary()
        left = self._expression(level + 1)
        while (
            not self._is_end()
            and self._next().kind != "text"
            and self._next().text in LEVELS[level]
        ):
            left = _binary(self._take().text, left, self._expression(level + 1))
        return left

    def _unary(self) -> Expression:
        if self._takes("not"):
            operand = self._unary()
            return lambda scope: not _is_true(operand(scope))
        if self._takes("#"):
            operand = self._unary()
            return lambda scope: len(operand(scope))
        return self._suffixed()[0]

    def _suffixed(self) -> tuple[Expression, Callable[[Scope, Any], None]]:
        """A value, and how to put another one in its place."""
        found, put = self._primary()
        while not self._is_end() and self._next().kind == "sign":
            if self._takes("["):
                index = self._expression()
                self._expect("]")
            elif self._takes("."):
                name = self._name()
                index = lambda _, name=name: name  # type: ignore[misc]  # noqa: E731
            elif self._takes("("):
                args = [] if self._next().text == ")" else self._list()
                self._expect(")")
                found, put = _called(found, args), _nowhere
                continue
            else:
                break
            found, put = _indexed(found, index)
        return found, put

    def _primary(self) -> tuple[Expression, Callable[[Scope, Any], None]]:
        token = self._take()
        if token.kind == "number":
            return lambda _: int(token.text), _nowhere
        if token.kind == "text":
            return lambda _: token.text, _nowhere
        if token.kind == "name":

            def put(scope: Scope, value: Any) -> None:
                holder = scope.holder(token.text)
                assert holder is not None, "scripts of Redis have no globals of their own"
                holder.names[token.text] = value

            return lambda scope: scope.value(token.text), put
        if token.text == "(":
            inside = self._expression()
            self._expect(")")
            return inside, _nowhere
        if token.text == "{":
            values = [] if self._next().text == "}" else self._list()
            self._expect("}")
            return lambda scope: [value(scope) for value in values], _nowhere
        constants = {"nil": None, "true": True, "false": False}
        if token.text in constants:
            return lambda _: constants[token.text], _nowhere
        raise SyntaxError(f"this Lua is not known here: {token.text}")

    # -- tokens

    def _is_end(self) -> bool:
        return self._at == len(self._tokens)

    def _next(self) -> Token:
        return Token("", "") if self._is_end() else self._tokens[self._at]

    def _take(self) -> Token:
        token = self._next()
        self._at += 1
        return token

    def _takes(self, text: str) -> bool:
        token = self._next()
        is_it = token.text == text and token.kind in ("word", "sign")
        self._at += is_it
        return is_it

    def _expect(self, text: str) -> None:
        if not self._takes(text):
            raise SyntaxError(f"'{text}' is expected before {self._next().text!r}")

    def _name(self) -> str:
        token = self._take()
        if token.kind != "name":
            raise SyntaxError(f"a name is expected, not {token.text!r}")
        return token.text


def _is_true(value: Any) -> bool:
    return value is not None and value is not False


def _nowhere(_: Scope, __: Any) -> None:
    raise SyntaxError("nothing is assigned to this")


def _called(function: Expression, args: Sequence[Expression]) -> Expression:
    return lambda scope: function(scope)(*(arg(scope) for arg in args))


def _indexed(
    table: Expression, index: Expression
) -> tuple[Expression, Callable[[Scope, Any], None]]:
    def get(scope: Scope) -> Any:
        found, at = table(scope), index(scope)
        if isinstance(found, dict):
            return found[at]
        return found[at - 1] if 1 <= at <= len(found) else None

    def put(scope: Scope, value: Any) -> None:
        table(scope)[index(scope) - 1] = value

    return get, put


def _binary(sign: str, left: Expression, right: Expression) -> Expression:
    if sign == "and":
        return lambda scope: right(scope) if _is_true(found := left(scope)) else found
    if sign == "or":
        return lambda scope: found if _is_true(found := left(scope)) else right(scope)
    work = SIGNS[sign]
    return lambda scope: work(left(scope), right(scope))


def _number(value: Any) -> Any:
    """Text is a number where one is needed."""
    return _tonumber(value) if isinstance(value, str) else value


def _tonumber(value: Any) -> Any:
    if isinstance(value, str):
        found = float(value)
        return int(found) if found.is_integer() else found
    return None if value is False else value


def _order(less: Callable[[Any, Any], bool]) -> Call:
    def compare(a: Any, b: Any) -> bool:
        assert isinstance(a, str) == isinstance(b, str), "Lua compares no text with a number"
        return less(a, b)

    return compare


def _same(a: Any, b: Any) -> bool:
    return isinstance(a, str) == isinstance(b, str) and a == b


SIGNS: Final[dict[str, Call]] = {
    "+": lambda a, b: _number(a) + _number(b),
    "-": lambda a, b: _number(a) - _number(b),
    "*": lambda a, b: _number(a) * _number(b),
    "/": lambda a, b: _number(a) / _number(b),
    "..": lambda a, b: f"{a}{b}",
    "<": _order(lambda a, b: a < b),
    ">": _order(lambda a, b: a > b),
    "<=": _order(lambda a, b: a <= b),
    ">=": _order(lambda a, b: a >= b),
    "==": _same,
    "~=": lambda a, b: not _same(a, b),
}


@cache
def _parsed(script: str) -> Statement:
    return Parser(script).block()


def run_script(script: str, keys: Sequence[str], args: Sequence[str], call: Call) -> Any:
    """What the script returns; ``call`` carries out the commands of Redis."""
    scope = Scope(
        KEYS=[*keys],
        ARGV=[*args],
        redis={"call": call},
        math={"floor": math.floor},
        tonumber=_tonumber,
    )
    try:
        _parsed(script)(scope)
    except Returned as returned:
        return returned.value
    return None
