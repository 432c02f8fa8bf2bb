"""Writes tools, calls and results as texts, for chat templates that don't know tools. Pure functions."""

import json
from typing import Any

from srb.wire.tools.call_format import PLAIN

_DESCRIPTION = """\
You can call tools. Each line describes one:
<tools>
{tools}
</tools>
To call one, write its name and its arguments like this:
{example}"""


def without_tools(conversation: list[dict[str, Any]], tools: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The conversation with its calls and results written as texts.

    The descriptions of the tools go to the end of its first system message, or into a new one.
    """
    result: list[dict[str, Any]] = []
    after_result = False
    for message in conversation:
        if calls := message.get("tool_calls"):
            text = "\n".join(filter(None, (message["content"], PLAIN.write(calls))))
            message = {"role": message["role"], "content": text}
        is_result = message["role"] == "tool"
        if is_result:
            message = {"role": "user", "content": f"<tool_response>\n{message['content']}\n</tool_response>"}
            if after_result:  # results are joined into one message, because in most templates roles must alternate
                message["content"] = f"{result.pop()['content']}\n{message['content']}"
        result.append(message)
        after_result = is_result
    if tools:
        description = _DESCRIPTION.format(
            tools="\n".join(json.dumps(tool, ensure_ascii=False) for tool in tools),
            example=PLAIN.write([{"function": {"name": "NAME", "arguments": "{...}"}}]),
        )
        if result[:1] and result[0]["role"] == "system":
            result[0] = result[0] | {"content": f"{result[0]['content']}\n\n{description}"}
        else:
            result.insert(0, {"role": "system", "content": description})
    return result
