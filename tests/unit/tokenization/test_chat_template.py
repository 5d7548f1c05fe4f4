"""Rendering of chat templates: identity with jinja2 as model makers use it, tool forms, prefill, control-token text."""

from __future__ import annotations

import json
from datetime import datetime

import pytest

from octavo.errors import InvalidRequest
from octavo.tokenization.chat_template import ChatTemplate

CONTROL = ["<s>", "</s>", "<|im_start|>", "<|im_end|>", "[INST]", "[/INST]"]
USER = [{"role": "user", "content": "Hi"}]
CHATML = (
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": "Weather <now> & 'later' é",
            "parameters": {
                "type": "object",
                "properties": {"city": {"type": "string"}, "unit": {"enum": ["c", "f"]}},
                "required": ["city"],
            },
        },
    }
]


def template(source: str, **kwargs: object) -> ChatTemplate:
    return ChatTemplate(source, bos_token="<s>", eos_token="</s>", control_tokens=CONTROL, **kwargs)


def render(source: str, messages: list[dict[str, object]] | None = None, **kwargs: object) -> str:
    return template(source).render(USER if messages is None else messages, **kwargs).text


def tool_chat(
    arguments: object = '{"city": "Oslo"}', call_id: str = "call_1"
) -> list[dict[str, object]]:
    call = {
        "id": call_id,
        "type": "function",
        "function": {"name": "get_weather", "arguments": arguments},
    }
    return [
        {"role": "user", "content": "Weather?"},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": call_id, "name": "get_weather", "content": "4 C"},
    ]


class TestText:
    def test_plain_conversation_is_rendered(self) -> None:
        assert render(CHATML) == "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"

    def test_bos_at_the_start_is_noticed_only_when_the_template_wrote_it(self) -> None:
        assert template("{{ bos_token }}x").render(USER).starts_with_bos
        assert not template("x{{ bos_token }}").render(USER).starts_with_bos
        user_bos = [{"role": "user", "content": "<s>"}]
        assert not template("{{ messages[0].content }}").render(user_bos).starts_with_bos

    def test_the_callers_messages_are_never_changed(self) -> None:
        messages = tool_chat({"city": "Oslo"})
        before = json.dumps(messages)
        source = "{% for m in messages %}{% set _ = m.update({'x': 1}) %}{% endfor %}"
        with pytest.raises(InvalidRequest):
            render(source, messages)
        render("{% set l = [] %}{% set _ = l.append(messages[0]) %}{{ l[0].content }}", messages)
        assert json.dumps(messages) == before

    def test_lists_that_the_template_made_may_grow(self) -> None:
        assert (
            render("{% set l = [] %}{% set _ = l.append('a') %}{{ l.pop(0) }}{{ l|length }}")
            == "a0"
        )

    def test_documents_kwargs_functions_and_datetime_reach_the_template(self) -> None:
        clock = template(
            "{{ documents[0].t }} {{ enable_thinking }} {{ functions }} {{ datetime }} {{ strftime_now('%d') }}",
            clock=lambda: datetime.fromisoformat("2024-05-06T07:08:09+00:00"),
        )
        kwargs = {"enable_thinking": False}
        text = clock.render(
            USER, documents=[{"t": "doc"}], template_kwargs=kwargs, tools=TOOLS
        ).text
        functions = json.dumps(TOOLS, indent=2, ensure_ascii=False)
        assert text == f"doc False {functions} May 06 2024 07:08:09 GMT 06"

    @pytest.mark.parametrize(
        "name", ["messages", "bos_token", "chat_template", "tokenize", "tools"]
    )
    def test_kwargs_that_would_replace_the_request_are_refused(self, name: str) -> None:
        with pytest.raises(InvalidRequest, match=name) as caught:
            render(CHATML, template_kwargs={name: "x"})
        assert caught.value.param == "chat_template_kwargs"

    def test_generation_blocks_show_their_content(self) -> None:
        source = (
            "{% for m in messages %}{% generation %}{{ m.content }}{% endgeneration %}!{% endfor %}"
        )
        assert render(source) == "Hi!"

    def test_values_that_are_not_json_are_refused(self) -> None:
        with pytest.raises(InvalidRequest, match="JSON"):
            render(CHATML, [{"role": "user", "content": object()}])

    def test_nesting_without_end_is_refused(self) -> None:
        deep: object = "x"
        for _ in range(5000):
            deep = [deep]
        with pytest.raises(InvalidRequest, match="deep"):
            render(CHATML, [{"role": "user", "content": deep}])


class TestJson:
    def test_json_is_written_as_json_dumps_does(self) -> None:
        assert render("{{ tools|tojson }}", tools=TOOLS) == json.dumps(TOOLS, ensure_ascii=False)
        indented = json.dumps(TOOLS, ensure_ascii=False, indent=2)
        assert render("{{ tools|tojson(indent=2) }}", tools=TOOLS) == indented

    def test_json_takes_separators_key_order_and_iterators(self) -> None:
        source = "{{ {'b': 1, 'a': [1, 2]}|tojson(separators=(',', ':'), sort_keys=true) }}"
        assert render(source) == '{"a":[1,2],"b":1}'
        assert render("{{ messages|map(attribute='role')|tojson }}") == '["user"]'
        assert render("{{ {'a': 1}.items()|tojson }}") == '[["a", 1]]'

    def test_json_is_read(self) -> None:
        assert render("{{ ('{\"a\": [1]}'|from_json).a[0] + 1 }}") == "2"


class TestTools:
    def test_arguments_are_an_object_for_the_template(self) -> None:
        source = "{{ messages[1].tool_calls[0].function.arguments.city if messages|length > 1 }}get_weather"
        assert render(source, tool_chat()) == "Osloget_weather"

    @pytest.mark.parametrize(
        "printed", ["{{ f.arguments }}", "{{ '' ~ f.arguments }}", "{{ '' + f.arguments }}"]
    )
    def test_arguments_are_json_text_for_a_template_that_prints_them(self, printed: str) -> None:
        source = "{% set f = messages[1].tool_calls[0].function %}{{ f.name }}" + printed
        assert render(source, tool_chat({"city": "Ås"})) == 'get_weather{"city": "Ås"}'

    def test_arguments_that_are_no_object_stay_text(self) -> None:
        source = "{% set f = messages[1].tool_calls[0].function %}{{ f.name + f.arguments }}"
        assert render(source, tool_chat('{"a":1}{"b":2}')) == 'get_weather{"a":1}{"b":2}'

    def test_ids_are_mapped_where_the_template_restricts_them(self) -> None:
        source = (
            "{% for m in messages %}{% for c in m.tool_calls or [] %}"
            "{% if c.id|length != 9 %}{{ raise_exception('Tool call IDs should have length 9!') }}{% endif %}"
            "{{ c.function.name }} {{ c.id }} {% endfor %}{% if m.role == 'tool' %}{{ m.tool_call_id }}{% endif %}"
            "{% endfor %}"
        )
        name, first, second = render(source, tool_chat(call_id="call_abcdefgh")).split()
        assert (name, first) == ("get_weather", second)
        assert len(first) == 9
        assert first.isalnum()
        assert render(source, tool_chat(call_id="call_abcdefgh")) == f"{name} {first} {second}"
        assert render(source, tool_chat(call_id="abcdefgh1")).split()[1] == "abcdefgh1"

    def test_content_is_none_for_a_template_that_shows_calls_only_then(self) -> None:
        source = (
            "{% for m in messages if m.role == 'assistant' %}{% if m.content is none %}"
            "{{ m.tool_calls[0].function.name }}{% else %}{{ m.content }}{% endif %}{% endfor %}"
        )
        assert render(source, tool_chat()) == "get_weather"
        assert render("{{ tools|tojson }}" + source, tool_chat(), tools=TOOLS).endswith(
            "get_weather"
        )

    def test_no_tools_are_an_empty_list_for_a_template_that_loops_over_them(self) -> None:
        assert render("{% for t in tools %}x{% endfor %}ok") == "ok"

    def test_parameters_get_the_description_that_a_template_reads(self) -> None:
        source = "{% for n, p in tools[0].function.parameters.properties.items() %}{{ n + p.description }} {% endfor %}"
        assert render(source, tools=TOOLS) == "city unit "


class TestPrefill:
    MESSAGES = (*USER, {"role": "assistant", "content": "Hello "})

    def prefill(self, source: str, messages: object = MESSAGES) -> str:
        return render(
            source, list(messages), add_generation_prompt=False, continue_final_message=True
        )

    def test_prompt_ends_after_the_content_and_keeps_its_trailing_space(self) -> None:
        expected = "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\nHello "
        assert self.prefill(CHATML) == expected
        assert self.prefill(CHATML.replace("m.content", "m.content|trim")) == expected

    def test_empty_content_ends_after_the_header(self) -> None:
        text = self.prefill(CHATML, (*USER, {"role": "assistant", "content": ""}))
        assert text.endswith("<|im_start|>assistant\n")

    def test_content_that_also_occurs_earlier_is_found_at_its_own_place(self) -> None:
        text = self.prefill(
            CHATML, ({"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hi"})
        )
        assert text.endswith("assistant\nHi")

    def test_a_template_that_drops_the_content_is_an_error(self) -> None:
        with pytest.raises(InvalidRequest, match="cannot be continued"):
            self.prefill("{{ messages[0].content }}")

    def test_both_flags_or_another_last_role_are_refused(self) -> None:
        with pytest.raises(InvalidRequest, match="exclude"):
            render(CHATML, list(self.MESSAGES), continue_final_message=True)
        with pytest.raises(InvalidRequest, match="assistant"):
            self.prefill(CHATML, USER)


class TestErrors:
    def test_the_templates_own_refusal_is_the_message(self) -> None:
        with pytest.raises(InvalidRequest, match=r"^roles must alternate$") as caught:
            render("{{ raise_exception('roles must alternate') }}")
        assert caught.value.param == "messages"

    def test_marks_do_not_show_in_messages(self) -> None:
        with pytest.raises(InvalidRequest) as caught:
            render(
                "{{ raise_exception(messages[0].content) }}",
                [{"role": "user", "content": "<|im_end|>"}],
            )
        assert caught.value.message == "<|im_end|>"

    def test_a_syntax_error_names_the_line(self) -> None:
        with pytest.raises(InvalidRequest, match="line 2") as caught:
            template("a\n{% if %}").check()
        assert caught.value.param == "chat_template"

    def test_a_failing_expression_is_an_invalid_request(self) -> None:
        with pytest.raises(InvalidRequest, match="fails on these messages"):
            render("{{ messages[0].nothing.more }}")


class TestControlText:
    def test_control_tokens_of_the_caller_are_marked_and_those_of_the_template_are_not(
        self,
    ) -> None:
        prompt = template(CHATML).render([{"role": "user", "content": "a<|im_end|>b"}])
        assert prompt.text.replace(prompt.mark, "").count("<|im_end|>") == 2
        assert prompt.text.count("<|im_end|>") == 1
        assert f"a<{prompt.mark}|im_end|>b" in prompt.text

    def test_names_descriptions_keys_arguments_and_results_are_marked(self) -> None:
        evil = "<|im_end|>"
        tools = json.loads(json.dumps(TOOLS).replace("get_weather", evil).replace("city", "[INST]"))
        messages = json.loads(
            json.dumps(tool_chat({"[INST]": evil}))
            .replace("4 C", evil)
            .replace("get_weather", evil)
        )
        text = render("{{ tools|tojson }}{{ messages|tojson }}", messages, tools=tools)
        assert not any(token in text for token in CONTROL)

    def test_halves_at_the_edge_do_not_join_with_the_template(self) -> None:
        for content, source in (
            ("<|im_end", "{{ messages[0].content }}|>"),
            ("|im_end|>", "<{{ messages[0].content }}"),
            ("im_end|>", "<|{{ messages[0].content }}"),
        ):
            assert "<|im_end|>" not in render(source, [{"role": "user", "content": content}])

    def test_ordinary_text_and_roles_are_untouched(self) -> None:
        prompt = template("{{ messages|tojson }}").render(
            [{"role": "user", "content": "a < b > c"}]
        )
        assert prompt.mark not in prompt.text

    def test_the_mark_is_a_character_that_the_input_lacks(self) -> None:
        prompt = template(CHATML).render([{"role": "user", "content": "\ufdd0<s>\ufdd1"}])
        assert prompt.mark not in "\ufdd0\ufdd1"
        assert "\ufdd0" in prompt.text


def test_overlapping_and_nested_control_tokens_are_all_broken() -> None:
    chat = ChatTemplate(
        "{{ messages[0].content }}",
        bos_token="",
        eos_token="",
        control_tokens=["<a>", "<a><b>", "b><c", "aa"],
    )
    text = chat.render([{"role": "user", "content": "<a><b><c>aaa"}]).text
    assert not any(token in text for token in ("<a>", "<a><b>", "b><c", "aa"))
