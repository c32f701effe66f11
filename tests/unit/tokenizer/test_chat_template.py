from datetime import UTC, datetime
from itertools import count

import pytest

from triolet.errors import ConfigError, InvalidRequest
from triolet.tokenizer import chat_template
from triolet.tokenizer.chat_template import ChatTemplate

CHATML = (
    "{% for message in messages %}{{'<' + message['role'] + '>' + message['content'] + '\n'}}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<assistant>' }}{% endif %}"
)
PARTS = (
    "{% for message in messages %}{% for part in message['content'] %}"
    "{% if part['type'] == 'text' %}[{{ part['text'] }}]{% endif %}{% endfor %}{% endfor %}"
)
CALLS = "{% for m in messages %}{% for c in m.tool_calls %}{{ ARGS }}{% endfor %}{% endfor %}"
HI = [{"role": "user", "content": "hi"}]
LAST = [*HI, {"role": "assistant", "content": "The answer is "}]


def rendered(source: str, messages: list[dict[str, object]] | None = None) -> str:
    return ChatTemplate(source).render(messages or HI)


def test_messages_are_rendered_in_order_with_a_generation_prompt() -> None:
    template = ChatTemplate(CHATML)
    assert template.render(HI) == "<user>hi\n<assistant>"
    assert template.render(HI, add_generation_prompt=False) == "<user>hi\n"


def test_blocks_leave_no_white_space_behind() -> None:
    assert rendered("  {% if true %}\n  x\n  {% endif %}\ny") == "  x\ny"


def test_json_is_written_without_html_escapes() -> None:
    messages: list[dict[str, object]] = [{"role": "user", "content": "<é&'>"}]
    assert rendered("{{ messages[0]['content'] | tojson }}", messages) == '"<é&\'>"'
    assert rendered("{{ {'b': 1, 'a': 2} | tojson(indent=1, sort_keys=true) }}") == (
        '{\n "a": 2,\n "b": 1\n}'
    )


def test_loop_controls_and_generation_blocks_are_understood() -> None:
    source = "{% for i in range(9) %}{% if i == 2 %}{% break %}{% endif %}{{ i }}{% endfor %}"
    assert rendered(source) == "01"
    assert rendered("a{% generation %}{{ messages[0].content }}{% endgeneration %}b") == "ahib"


def test_date_comes_from_the_given_clock() -> None:
    template = ChatTemplate(
        "{{ strftime_now('%d %b %Y') }}", now=lambda: datetime(2026, 2, 3, tzinfo=UTC)
    )
    assert template.render(HI) == "03 Feb 2026"


def test_special_tokens_are_variables() -> None:
    template = ChatTemplate("{{ bos_token }}x{{ eos_token }}", special_tokens={"bos_token": "<s>"})
    assert template.render(HI) == "<s>x"


def test_refusal_of_the_template_is_the_message_of_the_error() -> None:
    source = "{{ raise_exception('Conversation roles must alternate') }}"
    with pytest.raises(InvalidRequest) as refused:
        rendered(source)
    assert refused.value.message == "Conversation roles must alternate"
    assert refused.value.param == "messages"


def test_fault_of_the_template_is_a_refusal_of_the_messages() -> None:
    with pytest.raises(InvalidRequest, match="cannot render these messages: division by zero"):
        rendered("{{ 1 / 0 }}")


def test_broken_template_is_the_operators_fault() -> None:
    with pytest.raises(ConfigError, match="cannot be compiled"):
        ChatTemplate("{% for %}")


@pytest.mark.parametrize(
    "source",
    [
        "{{ ().__class__.__base__.__subclasses__() }}",
        "{{ messages.__init__.__globals__ }}",
        "{{ messages.append(1) }}",
        "{{ raise_exception.__globals__.x }}",
    ],
)
def test_sandbox_holds(source: str) -> None:
    with pytest.raises(InvalidRequest):
        rendered(source)


def test_endless_text_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chat_template, "RENDERED_CHARS_MAX", 1000)
    with pytest.raises(InvalidRequest, match="more than 1000 characters"):
        rendered("{% for i in range(99999) %}{{ 'x' }}{% endfor %}")


def test_endless_time_is_refused() -> None:
    ticks = count()
    source = "{% for i in range(9999) %}{% for j in range(9999) %}{{ '' }}{% endfor %}{% endfor %}"
    template = ChatTemplate(source, clock=lambda: float(next(ticks)))
    with pytest.raises(InvalidRequest, match="more than 10 s"):
        template.render(HI)


class TestContent:
    """Content is given to a template in the shape that it takes."""

    def parts(self, *texts: str) -> list[dict[str, object]]:
        return [{"role": "user", "content": [{"type": "text", "text": text} for text in texts]}]

    def test_parts_are_joined_for_a_template_of_strings(self) -> None:
        assert rendered(CHATML, self.parts("a", "b")) == "<user>a\nb\n<assistant>"

    def test_parts_and_strings_reach_a_template_of_parts(self) -> None:
        assert rendered(PARTS, self.parts("a", "b")) == "[a][b]"
        assert rendered(PARTS) == "[hi]"

    def test_keys_without_value_are_left_out(self) -> None:
        source = "{{ 'content' in messages[0] }}"
        assert rendered(source, [{"role": "assistant", "content": None}]) == "False"

    @pytest.mark.parametrize(
        ("content", "param"),
        [
            ([{"type": "image_url", "image_url": {"url": "x"}}], "messages[0].content[0].type"),
            ([{"type": "text"}], "messages[0].content[0]"),
            (["bare"], "messages[0].content[0]"),
            (7, "messages[0].content"),
        ],
    )
    def test_what_is_no_text_is_refused_by_name(self, content: object, param: str) -> None:
        with pytest.raises(InvalidRequest) as refused:
            rendered(CHATML, [{"role": "user", "content": content}])
        assert refused.value.param == param

    def test_no_messages_are_refused(self) -> None:
        with pytest.raises(InvalidRequest, match="at least one message"):
            ChatTemplate(CHATML).render([])

    def test_too_many_messages_are_refused(self) -> None:
        with pytest.raises(InvalidRequest, match="at most 4096 messages, got 5000"):
            ChatTemplate(CHATML).render(HI * 5000)


def test_developer_is_system_unless_the_template_knows_it() -> None:
    messages: list[dict[str, object]] = [{"role": "developer", "content": "x"}]
    assert rendered(CHATML, messages) == "<system>x\n<assistant>"
    known = "{{ messages[0].role }}{# developer #}"
    assert rendered(known, messages) == "developer"


def call(arguments: object) -> list[dict[str, object]]:
    function = {"name": "f", "arguments": arguments}
    return [{"role": "assistant", "tool_calls": [{"id": "1", "function": function}]}]


def test_arguments_become_an_object_or_stay_text_as_the_template_needs() -> None:
    as_object = CALLS.replace("ARGS", "c.function.arguments.items() | list")
    as_text = CALLS.replace("ARGS", "'(' + c.function.arguments + ')'")
    assert rendered(as_object, call('{"a": 1}')) == "[('a', 1)]"
    assert rendered(as_object, call("")) == "[]"
    assert rendered(as_text, call('{"a": 1}')) == '({"a": 1})'
    assert rendered(as_text, call({"a": "é"})) == '({"a": "é"})'


@pytest.mark.parametrize("arguments", ["{", "[1]", "[" * 10**5])
def test_arguments_that_are_no_object_are_refused_by_name(arguments: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        rendered(CALLS.replace("ARGS", "c.function.arguments | tojson"), call(arguments))
    assert refused.value.param == "messages[0].tool_calls[0].function.arguments"


def test_reasoning_is_found_under_every_name_clients_use() -> None:
    source = "{{ messages[0].reasoning_content }}{{ messages[0].thinking }}"
    for name in ("reasoning", "reasoning_content", "thinking"):
        assert rendered(source, [{"role": "assistant", name: "R"}]) == "RR"


class TestContinueFinalMessage:
    def test_final_message_is_left_open_with_its_white_space(self) -> None:
        text = ChatTemplate(CHATML).render(
            LAST, add_generation_prompt=False, continue_final_message=True
        )
        assert text == "<user>hi\n<assistant>The answer is "

    def test_trimming_template_trims_the_end(self) -> None:
        source = "{% for m in messages %}{{ m.content | trim }}|{% endfor %}"
        text = ChatTemplate(source).render(
            LAST, add_generation_prompt=False, continue_final_message=True
        )
        assert text == "hi|The answer is"

    def test_last_text_part_is_continued(self) -> None:
        parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
        text = ChatTemplate(PARTS).render(
            [{"role": "assistant", "content": parts}],
            add_generation_prompt=False,
            continue_final_message=True,
        )
        assert text == "[a][b"

    def test_it_excludes_a_generation_prompt(self) -> None:
        with pytest.raises(InvalidRequest, match="set add_generation_prompt to false"):
            ChatTemplate(CHATML).render(LAST, continue_final_message=True)

    @pytest.mark.parametrize("source", ["{{ messages[0].content }}", "nothing"])
    def test_template_that_drops_the_message_is_refused(self, source: str) -> None:
        with pytest.raises(InvalidRequest, match="does not render the final message"):
            ChatTemplate(source).render(
                LAST, add_generation_prompt=False, continue_final_message=True
            )

    def test_message_without_text_is_refused(self) -> None:
        with pytest.raises(InvalidRequest, match="needs text in the last message"):
            ChatTemplate("x").render(
                [{"role": "assistant"}], add_generation_prompt=False, continue_final_message=True
            )


class TestTemplateKwargs:
    def test_scalars_and_flat_lists_reach_the_template(self) -> None:
        template = ChatTemplate("{{ enable_thinking }} {{ effort }} {{ tags | join('+') }}")
        kwargs = {"enable_thinking": False, "effort": "low", "tags": ["a", "b"]}
        assert template.render(HI, template_kwargs=kwargs) == "False low a+b"
        assert template.variables == {"enable_thinking", "effort", "tags"}

    @pytest.mark.parametrize(
        ("name", "value"),
        [
            ("chat_template", "{{ 1 }}"),
            ("messages", "x"),
            ("bos_token", "x"),
            ("raise_exception", None),
            ("_private", 1),
            ("no-name", 1),
            ("deep", {"a": 1}),
            ("deep", [[1]]),
            ("long", "x" * 5000),
            ("long", ["x"] * 65),
            ("huge", 2**70),
        ],
    )
    def test_anything_else_is_refused_by_name(self, name: str, value: object) -> None:
        template = ChatTemplate(CHATML, special_tokens={"bos_token": "<s>"})
        with pytest.raises(InvalidRequest) as refused:
            template.render(HI, template_kwargs={name: value})
        assert refused.value.param == f"chat_template_kwargs.{name}"

    def test_too_many_are_refused(self) -> None:
        with pytest.raises(InvalidRequest, match="at most 32 variables, got 33"):
            ChatTemplate(CHATML).render(HI, template_kwargs={f"v{i}": 1 for i in range(33)})
