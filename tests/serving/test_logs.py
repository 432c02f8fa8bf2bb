import asyncio
import logging
from pathlib import Path

from srb.errors import BackendError, InvalidRequestError
from srb.serving.logs import LogFormatter, logfmt


def test_logfmt_quotes_what_is_not_one_plain_word() -> None:
    line = logfmt(a=1, b=1.26, c="plain:1,x", d='two "words"', e="line\nbreak", f="", g=None, h="é", i="k=v")
    assert line == 'a=1 b=1.3 c=plain:1,x d="two \\"words\\"" e="line\\nbreak" f="" h="\\u00e9" i="k=v"'


def formatted(raise_it: object, name: str = "srb", message: str = "a fault") -> str:
    try:
        raise_it()  # type: ignore[operator]
    except Exception as error:
        raised = (type(error), error, error.__traceback__)
    return LogFormatter().format(logging.LogRecord(name, logging.ERROR, "", 0, message, (), raised))


def test_a_traceback_has_places_and_types_but_no_values() -> None:
    def fail() -> None:
        try:
            dict[str, str]()["secret"]
        except KeyError as error:
            raise InvalidRequestError(f"no {error}") from error

    text = formatted(fail)
    assert "in fail" in text
    assert text.index("KeyError") < text.index("InvalidRequestError")
    assert '"secret"' in text  # a line of the program is no value
    assert "no 'secret'" not in text


def test_what_the_server_says_of_itself_is_in_a_traceback() -> None:
    def fail() -> None:
        raise BackendError("llama_decode failed")

    assert formatted(fail).endswith("BackendError: llama_decode failed")
    assert formatted(Path("/no/such/file").read_text).endswith("FileNotFoundError: No such file or directory")


async def test_the_error_of_a_task_without_a_reader_is_logged_without_its_message(caplog: object) -> None:
    async def fail() -> None:
        raise ValueError("secret")

    task = asyncio.create_task(fail())
    await asyncio.wait({task})
    message = f"Task exception was never retrieved\nfuture: {task!r}"
    assert "secret" in message
    text = formatted(task.result, "asyncio", message)
    assert "Task exception was never retrieved" in text
    assert "('secret')" not in text
