"""The chat templates that `--chat-template` knows by name, in Jinja, and the plain one for models that have none.

If llama-server has the same format, the name is the same. No template writes BOS, since tokenizing a prompt adds it.
"""

PLAIN = "plain"

STOPS = {PLAIN: ("\nUser:",)}
"""Strings that end the assistant's message, where a format has no token for that."""

TEMPLATES = {
    PLAIN: """\
{% for message in messages -%}
{{ message.content if message.role == 'system' else message.role | capitalize + ': ' + message.content }}

{% endfor %}{% if add_generation_prompt %}Assistant:{% endif %}""",
    "chatml": """\
{% for message in messages %}{{ '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}{% endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}""",
    "gemma": """\
{% if messages[0].role == 'system' %}{% set system, turns = messages[0].content | trim + '\\n\\n', messages[1:] %}
{%- else %}{% set system, turns = '', messages %}{% endif %}
{%- for message in turns %}{{ '<start_of_turn>' + ('model' if message.role == 'assistant' else message.role) + '\\n' +
(system if loop.first else '') + message.content | trim + '<end_of_turn>\\n' }}{% endfor %}
{%- if add_generation_prompt %}{{ '<start_of_turn>model\\n' }}{% endif %}""",
    "llama3": """\
{% for message in messages %}{{ '<|start_header_id|>' + message.role + '<|end_header_id|>\\n\\n' +
message.content | trim + '<|eot_id|>' }}{% endfor %}
{%- if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{% endif %}""",
    "vicuna": """\
{% for message in messages %}
{%- if message.role == 'system' %}{{ message.content + '\\n\\n' }}
{%- elif message.role == 'assistant' %}{{ 'ASSISTANT: ' + message.content + eos_token + '\\n' }}
{%- else %}{{ 'USER: ' + message.content + '\\n' }}{% endif %}{% endfor %}
{%- if add_generation_prompt %}{{ 'ASSISTANT:' }}{% endif %}""",
    "zephyr": """\
{% for message in messages %}{{ '<|' + message.role + '|>\\n' + message.content + eos_token + '\\n' }}{% endfor %}
{%- if add_generation_prompt %}{{ '<|assistant|>\\n' }}{% endif %}""",
}
