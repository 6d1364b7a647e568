"""Chat templates: what published ones need works; what a hostile one tries is refused in bounded time and memory."""

import json
import time
from datetime import datetime
from typing import Any

import msgspec
import pytest

from phloem_model import ModelFiles
from phloem_proto.messages import ChatMessage
from phloem_tokenizer.errors import Refused
from phloem_tokenizer.templates import ChatTemplate

NOW = datetime(2026, 3, 9, 12, 0)
CHAT = (ChatMessage("system", "Be brief."), ChatMessage("user", "Hi ü"), ChatMessage("assistant", "Hello"))


def render(
    source: str | None, messages: tuple[ChatMessage, ...] = CHAT, tools: str = "", template_kwargs: str = ""
) -> str:
    template = ChatTemplate(source, "<s>", "</s>")
    return template.render(messages, now=NOW, tools=tools, template_kwargs=template_kwargs)


def refusal(source: str | None, tools: str = "", template_kwargs: str = "") -> str:
    with pytest.raises(Refused) as caught:
        render(source, tools=tools, template_kwargs=template_kwargs)
    assert caught.value.info.code == "invalid_request"
    assert "\n" not in caught.value.info.message
    assert "/" not in caught.value.info.message.replace("</", "")  # no path
    return f"{caught.value.info.param}: {caught.value.info.message}"


@pytest.mark.integration
def test_the_default_models_template(smollm2: ModelFiles) -> None:
    template = ChatTemplate(smollm2.chat_template, smollm2.bos_token, smollm2.eos_token)
    assert template.render((ChatMessage("user", "Hi"),), now=NOW) == (
        "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
        "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    )
    assert template.render(CHAT, now=NOW, template_kwargs='{"add_generation_prompt": false}') == (
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi ü<|im_end|>\n<|im_start|>assistant\nHello<|im_end|>\n"
    )


PUBLISHED = [
    ("{{ bos_token }}{{ messages[0]['role'] }}{{ eos_token }}", "<s>system</s>"),
    ("{{ messages[1].content | tojson }}{{ messages[1] | tojson }}", '"Hi ü"{"role": "user", "content": "Hi ü"}'),
    ("{{ strftime_now('%d %b %Y') }}", "09 Mar 2026"),
    ("{% for m in messages %}\n    {{ m.role }}\n    {% endfor %}\n", "    system\n    user\n    assistant\n"),
    ("{% for m in messages %}{% if loop.index0 == 1 %}{% break %}{% endif %}{{ m.role }}{% endfor %}", "system"),
    ("{% set ns = namespace(n=0) %}{% for m in messages %}{% set ns.n = ns.n + 1 %}{% endfor %}{{ ns.n }}", "3"),
    ("{% macro t(x) %}<{{ x }}>{% endmacro %}{{ t('a') ~ t(messages | length) }}", "<a><3>"),
    ("{% for m in messages if m.role == 'user' %}{{ m.content.strip() }}{% endfor %}", "Hi ü"),
    ("{% for m in messages %}{% if m.tool_calls %}x{% endif %}{% endfor %}{% if tools %}y{% endif %}", ""),
    ("{% set x %}a{{ 'b' }}{% endset %}{{ x }}{{ messages[-1].name is defined }}", "abFalse"),
    ("{% generation %}{{ messages[2].content }}{% endgeneration %}", "Hello"),
    ("{{ 'a-b'.split('-') | join('+') }}{{ 'abc' | replace('b', 'x') }}{{ 'abc'[1:] }}{{ 7 % 3 }}", "a+baxcbc1"),
    ("{{ messages | selectattr('role', 'equalto', 'user') | map(attribute='content') | list | first }}", "Hi ü"),
    ("{{ '%s is %d' % ('x', 3) }}{{ '{}!'.format('y') }}", "x is 3y!"),
    ("{% filter upper %}a{% endfilter %}{{ {'a': 1} | tojson(indent=2) | indent(1) }}", 'A{\n   "a": 1\n }'),
]


@pytest.mark.parametrize(("source", "text"), PUBLISHED)
def test_what_published_templates_use(source: str, text: str) -> None:
    assert render(source) == text


LONG = {
    "turns counted from the end, thoughts cut out": """
        {%- set ns = namespace(last=messages|length - 1, found=false) %}
        {%- for m in messages[::-1] %}
            {%- if not ns.found and m.role == "user" and not (m.content.startswith('<t>') and m.content.endswith('</t>')) %}
                {%- set ns.found = true %}{%- set ns.last = (messages|length - 1) - loop.index0 %}
            {%- endif %}
        {%- endfor %}
        {%- for m in messages %}
            {%- set content = m.content %}
            {%- if '</think>' in content %}
                {%- set content = content.split('</think>')[-1].lstrip('\\n') %}
            {%- endif %}
            {{- '<|' + m.role + '|>' + content + ('*' if loop.index0 > ns.last else '') + '\\n' }}
        {%- endfor %}""",
    "tools as types, by a macro that calls itself": """
        {%- macro kind(spec) %}
            {%- set names = {"string": "str", "integer": "int"} %}
            {%- if names[spec.type] is defined %}{{- names[spec.type] }}
            {%- elif spec.type == "array" %}{{- "List[" + kind(spec["items"]) + "]" }}
            {%- elif spec.type is iterable and spec.type is not string %}{{- "Union[" }}
                {%- for t in spec.type %}{{- kind({"type": t}) }}{%- if not loop.last %}{{- "," }}{%- endif %}{%- endfor %}
                {{- "]" }}
            {%- else %}{{- "Any" }}
            {%- endif %}
        {%- endmacro %}
        {%- for tool in tools or [] %}
            {%- for name, spec in tool.function.parameters|items %}
                {{- name + ': ' + kind(spec) + '\\n' }}
            {%- endfor %}
            {{- tool.function|tojson(indent=4)|indent(8, first=true) }}
            {%- for key, val in tool.function.items() if key != "name" %}{{- key + val|string }}{%- endfor %}
        {%- endfor %}""",
    "alternation checked, the last user turn marked": """
        {%- if messages[0]["role"] == "system" %}
            {%- set system = messages[0]["content"]|trim %}{%- set loop_messages = messages[1:] %}
        {%- else %}{%- set loop_messages = messages %}{%- endif %}
        {%- set users = loop_messages | selectattr("role", "equalto", "user") | list %}
        {{- bos_token }}
        {%- for m in loop_messages %}
            {%- if (m["role"] == "user") != (loop.index0 % 2 == 0) %}{{- raise_exception("must alternate") }}{%- endif %}
            {%- if m == users[-1] and system is defined %}{{- "[" + system + "]" }}{%- endif %}
            {{- m.role | upper ~ ": " ~ m.content | trim }}
            {%- if not loop.last %}{{- ", " }}{%- else %}{{- eos_token }}{%- endif %}
        {%- endfor %}
        {%- if date is not defined %}{%- set date = "today" %}{%- endif %}{{- date }}""",
}
TOOLS: list[dict[str, Any]] = [
    {
        "type": "function",
        "function": {
            "name": "fü<&>",
            "parameters": {
                "a": {"type": "array", "items": {"type": "string"}},
                "b": {"type": ["integer", "string", "x"]},
            },
        },
    }
]


@pytest.mark.parametrize("source", [*LONG.values(), *(source for source, _ in PUBLISHED if "strftime" not in source)])
def test_templates_render_as_in_transformers(source: str) -> None:
    from transformers.utils.chat_template_utils import _compile_jinja_template

    variables = {"tools": TOOLS, "bos_token": "<s>", "eos_token": "</s>", "add_generation_prompt": True}
    chat = [{"role": message.role, "content": message.content} for message in CHAT]
    expected = _compile_jinja_template(source).render(messages=chat, **variables)
    assert render(source, tools=json.dumps(TOOLS)) == expected


def test_a_template_may_refuse_a_chat_and_its_words_are_the_error() -> None:
    source = "{% if messages[0].role == 'system' %}{{ raise_exception('System role\nis not supported') }}{% endif %}"
    assert refusal(source) == "messages: the chat template failed: System role is not supported"


def test_names_and_variables_reach_the_template() -> None:
    assert render("{{ messages[0].name }}", (ChatMessage("user", "x", "Ann"),)) == "Ann"
    assert render("{{ enable_thinking }}", template_kwargs='{"enable_thinking": false}') == "False"
    assert "template_kwargs: " in refusal("", template_kwargs="[1]")
    assert "template_kwargs: " in refusal("", template_kwargs="{")
    assert "'messages'" in refusal("", template_kwargs='{"messages": []}')


def test_tools_are_given_whole_and_flattened_if_that_fails() -> None:
    tools = json.dumps([{"type": "function", "function": {"name": "f"}}])
    assert render("{{ tools[0].function.name }}", tools=tools) == "f"
    assert render("{{ tools[0]['name'] + '!' }}", tools=tools) == "f!"
    assert "tools: " in refusal("", tools="{}")


def test_a_model_without_a_usable_template() -> None:
    assert "no chat template" in refusal(None)
    assert "not valid" in refusal("{% for %}")
    assert "not valid" in refusal("{{ 1 | no_such_filter }}")


@pytest.mark.parametrize(
    "source",
    [
        "{{ ''.__class__.__mro__ }}",
        "{{ messages.__class__ }}",
        "{{ ''|attr('__class__') }}",
        "{{ ''['__class__'] }}{{ ().__class__.__bases__[0].__subclasses__() }}",
        "{{ raise_exception.__globals__ }}",
        "{{ strftime_now.__globals__['json'] }}",
        "{{ self.__init__.__globals__ }}",
        "{{ cycler.__init__.__globals__.os.popen('id').read() }}",
        "{{ '{0.__class__.__mro__}'.format('') }}",
        "{{ joiner.__init__ }}{{ namespace.__init__.__globals__ }}",
        "{{ messages | map(attribute='__class__') | list | first }}x{{ (messages | map(attribute='__class__') | first)() }}",
        "{% do messages.append(1) %}",
        "{{ messages.append({}) }}",
        "{{ messages[0].update({'role': 'x'}) }}",
        "{{ messages.pop() }}",
        "{{ messages.clear() }}",
        "{% include '/etc/passwd' %}",
        "{% import 'os' as os %}",
        "{% extends 'x' %}",
        "{{ lipsum(1000) }}",
        "{{ dict.__subclasses__() }}{{ dict.mro() }}",
        "{% set ns = namespace() %}{% set ns.__class__ = 1 %}x",
        "{% set ns = namespace() %}{% set ns._Namespace__attrs = 1 %}x{{ ns._Namespace__attrs }}",
    ],
)
def test_escapes_and_mutation_are_refused(source: str) -> None:
    chat = (ChatMessage("user", "x"),)
    before = msgspec.to_builtins(chat)
    try:
        text = render(source, chat)
    except Refused:
        text = ""  # jinja2 makes some forbidden attributes undefined instead, which is empty text
    assert text in ("", "x")
    assert msgspec.to_builtins(chat) == before


@pytest.mark.parametrize(
    "source",
    [
        "{% for i in range(999999999) %}{% endfor %}",
        "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
        "{% for i in range(99999) %}{% for j in range(99999) if false %}{% endfor %}{% endfor %}",
        "{% for i in range(99999) %}{% set x = range(99999) | list %}{% endfor %}",
        "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
        "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(60) }}",
        "{% for i in [[[]]] recursive %}{{ loop([i]) }}{% endfor %}",
        "{% set ns = namespace(x='a') %}{% for i in range(99) %}{% set ns.x = ns.x + ns.x %}{% endfor %}",
        "{% set ns = namespace(x='a') %}{% for i in range(99) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}",
        "{% set ns = namespace(x=['a']) %}{% for i in range(99) %}{% set ns.x = ns.x + ns.x %}{% endfor %}",
        "{% set ns = namespace(x=9) %}{% for i in range(99) %}{% set ns.x = ns.x * ns.x %}{% endfor %}",
        "{% set ns = namespace(x='a') %}{% for i in range(99) %}{% set ns.x = [ns.x, ns.x] | join %}{% endfor %}",
        "{% set ns = namespace(x='a') %}{% for i in range(99) %}{% set x %}{{ ns.x }}{{ ns.x }}{% endset %}"
        "{% set ns.x = x %}{% endfor %}",
        "{% set ns = namespace(x=[1]) %}{% for i in range(99) %}{% set ns.x = [ns.x, ns.x] %}{% endfor %}{{ ns.x }}",
        "{% set ns = namespace(x=1) %}{% for i in range(99) %}{% set ns.x = {'a': ns.x, 'b': ns.x} %}{% endfor %}"
        "{{ ns.x | tojson }}",
        "{% set ns = namespace(x=(1,)) %}{% for i in range(99) %}{% set ns.x = (ns.x, ns.x) %}{% endfor %}{{ ns.x }}",
        "{% set x = 'a' * 8000000 %}{{ [x] * 999 }}",
        "{{ 'a' * 999999999 }}",
        "{{ 999999999 * ['a'] }}",
        "{{ 9 ** 9 ** 9 }}",
        "{{ '%999999999d' % 1 }}",
        "{{ '%*d' % (999999999, 1) }}",
        "{{ '{:999999999}'.format(1) }}",
        "{{ '{:{}}'.format(1, 999999999) }}",
        "{% set x = 'a' * 800000 %}{{ ('{0}' * 99999).format(x) }}",
        "{% set x = ['a'] * 9999 %}{{ ('{0}' * 99999).format(x) }}",
        "{% set x = 'a' * 800000 %}{{ ('%(a)s' * 99999) % {'a': x} }}",
        "{{ ('{0:9999}' * 99999).format(1) }}",
        "{{ '\\t'.expandtabs(999999999) }}",
        "{{ ('\\n' * 800000) | indent(99) }}",
        "{{ 'a'.center(999999999) }}{{ 'a'.zfill(width=999999999) }}",
        "{{ 'a' | center(999999999) }}",
        "{{ '\na' | indent(999999999) }}",
        "{{ [1] | tojson(indent=999999999) }}",
        "{% set x = 'a' * 99999 %}{{ x.replace('a', x) }}",
        "{% set x = 'a' * 99999 %}{{ x | replace('a', x) }}",
        "{% set x = 'a' * 99999 %}{{ x.join(x) }}",
        "{% set x = 'a' * 99999 %}{{ x.join(x | list) }}",
        "{% set x = 'a' * 99999 %}{{ x | list | join(x) }}",
        "{% set x = 'a' * 99999 %}{{ x.translate({97: x}) }}",
        "{{ [1] | batch(999999999, 0) | list }}",
        "{{ [1] | slice(999999999) | list }}",
        "{% set x = 'a' * 8000000 %}{% for i in range(99999) %}{{ x }}{% endfor %}",
        "{% filter replace('a', 'b' * 8000000) %}{{ 'a' * 8000000 }}{% endfilter %}",
    ],
)
def test_what_runs_or_grows_without_end_is_refused(source: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("phloem_tokenizer.sandbox.MAX_STEPS", 50_000)
    start = time.perf_counter()
    assert refusal(source).startswith("messages: ")
    assert time.perf_counter() - start < 20


def test_the_caller_can_give_up() -> None:
    asked = 0

    def give_up() -> bool:
        nonlocal asked
        asked += 1
        return asked > 3

    template = ChatTemplate("{% for i in range(99999) %}{% endfor %}", None, None)
    with pytest.raises(Refused, match="deadline"):
        template.render(CHAT, now=NOW, give_up=give_up)
    assert asked == 4


def test_long_chats_are_within_the_bounds() -> None:
    chat = tuple(ChatMessage("user" if turn % 2 else "assistant", "word " * 100) for turn in range(4000))
    source = "{% for m in messages %}{{ '<|' + m['role'] + '|>' + m['content'] | trim + '\n' }}{% endfor %}"
    assert len(render(source, chat)) > 2_000_000
