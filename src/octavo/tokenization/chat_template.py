"""Renders chat templates: messages, tools and documents to the text of a prompt."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from typing import Final

import jinja2
from jinja2.exceptions import SecurityError, TemplateSyntaxError

from octavo.errors import InvalidRequest
from octavo.tokenization.control_text import ControlText, pick_marks
from octavo.tokenization.template_env import (
    ChatEnvironment,
    TemplateRaised,
)
from octavo.tokenization.template_input import InputSize, argument_objects, marked, plain
from octavo.tokenization.template_limits import Budget, TemplateRefused
from octavo.tokenization.template_rewrite import GenerationBlocks, rewrite
from octavo.tokenization.template_state import STATE_KEY, PrintsArguments, RenderState
from octavo.tokenization.template_variants import (
    Message,
    Variant,
    apply,
    called_names,
    restricts_ids,
    tool_variants,
    variants,
    with_short_ids,
)

_MAX_SOURCE: Final = 1 << 20
_MAX_REASON: Final = 300
_RESERVED: Final = frozenset(
    (
        "messages",
        "tools",
        "documents",
        "add_generation_prompt",
        "continue_final_message",
        "chat_template",
    )
) | frozenset(("tokenize", "bos_token", "eos_token", "functions", "datetime"))
_INTERNAL_NAMES: Final = re.compile(
    r"<[^<>]* at 0x[0-9a-fA-F]+>|\b(?:octavo|jinja2|markupsafe)(?:\.\w+)+|(?:/[\w.@-]+){2,}"
)


@dataclass(frozen=True, slots=True)
class RenderedPrompt:
    """The text of a prompt. `mark` stands inside control-token text that came from the caller, for the tokenizer."""

    text: str
    mark: str
    starts_with_bos: bool


class ChatTemplate:
    """A jinja2 chat template of a model. Untrusted: it runs sandboxed, on copies, within a budget. Thread-safe.

    `control_tokens` are the texts of the vocabulary's control tokens. The template is compiled on first use.
    """

    def __init__(
        self,
        source: str,
        *,
        bos_token: str,
        eos_token: str,
        control_tokens: Sequence[str],
        clock: Callable[[], datetime] = datetime.now,
    ) -> None:
        self.source = source
        self._bos_token = bos_token
        self._eos_token = eos_token
        self._control_text = ControlText(control_tokens)
        self._clock = clock

    @cached_property
    def _compiled(self) -> jinja2.Template:
        if len(self.source) > _MAX_SOURCE:
            raise InvalidRequest(
                f"the chat template is longer than {_MAX_SOURCE} characters", param="chat_template"
            )
        environment = ChatEnvironment(
            ["jinja2.ext.loopcontrols", "jinja2.ext.do", GenerationBlocks], self._clock
        )
        try:
            code = environment.compile(rewrite(environment.parse(self.source)))
        except TemplateSyntaxError as error:
            reason = _scrub(error.message or "")
            raise InvalidRequest(
                f"the chat template has an error in line {error.lineno}: {reason}",
                param="chat_template",
            ) from None
        except SecurityError as error:
            raise InvalidRequest(
                f"the chat template is not allowed: {_scrub(str(error))}", param="chat_template"
            ) from None
        except (RecursionError, MemoryError, SyntaxError):
            raise InvalidRequest(
                "the chat template is nested too deeply", param="chat_template"
            ) from None
        return jinja2.Template.from_code(environment, code, environment.globals)

    def check(self) -> None:
        """Compile the template now. Raises InvalidRequest that says what is wrong with it."""
        _ = self._compiled

    def render(
        self,
        messages: Sequence[Mapping[str, object]],
        *,
        tools: Sequence[Mapping[str, object]] | None = None,
        documents: Sequence[Mapping[str, object]] | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        template_kwargs: Mapping[str, object] | None = None,
    ) -> RenderedPrompt:
        """Render a conversation.

        With `continue_final_message` the prompt ends right after the content of the last message, an assistant's.
        Raises InvalidRequest: the template refuses the messages (its own words), fails on them, or spends too much.
        """
        kwargs = dict(template_kwargs or {})
        _check_flags(messages, kwargs, add_generation_prompt, continue_final_message)
        given: tuple[object, ...] = (messages, tools, documents, kwargs)
        size = InputSize()
        mark, tail = pick_marks(size.walk((*given, self.source)), 2)
        plain_messages, *plain_rest = (plain(value) for value in given)
        assert isinstance(plain_messages, list)
        if continue_final_message:
            plain_messages[-1]["content"] += tail
        run = _Rendering(
            self._compiled,
            self.source,
            self._control_text,
            mark,
            tail,
            size.num_bytes,
            self._variables(*plain_rest),
        )
        run.variables["add_generation_prompt"] = add_generation_prompt
        text = run.best(plain_messages)
        if continue_final_message:
            text, found, _ = text.rpartition(tail)
            if not found:
                raise InvalidRequest(
                    "the chat template leaves out the content of the final message, so it cannot be continued",
                    param="messages",
                )
        starts_with_bos = bool(self._bos_token) and text.startswith(self._bos_token)
        return RenderedPrompt(text, mark, starts_with_bos)

    def _variables(self, tools: object, documents: object, kwargs: object) -> dict[str, object]:
        assert isinstance(kwargs, dict)
        return {
            **kwargs,
            "tools": tools,
            "documents": documents,
            "bos_token": self._bos_token,
            "eos_token": self._eos_token,
            "datetime": self._clock().astimezone(UTC).strftime("%b %d %Y %H:%M:%S GMT"),
        }


@dataclass(slots=True)
class _Rendering:
    """One call of render: tries the forms of the messages until one suits the template."""

    template: jinja2.Template
    source: str
    control_text: ControlText
    mark: str
    tail: str
    input_bytes: int
    variables: dict[str, object]

    def best(self, messages: list[Message]) -> str:
        """The text of the form that shows the called functions most often; of equals, the first."""
        names = [self.control_text.mark(name, self.mark) for name in called_names(messages)]
        budget = Budget(self.input_bytes)
        error: InvalidRequest | None = None
        for tools in tool_variants(self.variables["tools"]):
            self.variables["tools"] = tools
            texts = []
            for group in variants(messages, self.source):
                text, failure = self._first(group, messages, budget)
                error = error or failure
                texts += [] if text is None else [text]
            if texts:
                return max(texts, key=lambda text: sum(map(text.count, names)))
        raise error or InvalidRequest(
            "the chat template cannot show tool arguments", param="messages"
        )

    def _first(
        self, group: list[Variant], messages: list[Message], budget: Budget
    ) -> tuple[str | None, InvalidRequest | None]:
        """The text of the first form in `group` that renders, or the first error."""
        error: InvalidRequest | None = None
        for variant in group:
            try:
                return self._with_ids(apply(messages, variant), budget), None
            except PrintsArguments:
                continue
            except InvalidRequest as failure:
                error = error or failure
        return None, error

    def _clean(self, text: str) -> str:
        return text.replace(self.mark, "").replace(self.tail, "")

    def _with_ids(self, messages: list[Message], budget: Budget) -> str:
        try:
            return self._render(messages, budget)
        except InvalidRequest as error:
            if not any(
                "tool_calls" in m or "tool_call_id" in m for m in messages
            ) or not restricts_ids(error.message):
                raise
        return self._render(with_short_ids(messages), budget)

    def _render(self, messages: list[Message], budget: Budget) -> str:
        variables = marked({"messages": messages, **self.variables}, self.control_text, self.mark)
        assert isinstance(variables, dict)
        for name in ("bos_token", "eos_token"):
            variables[name] = self.variables[name]
        tools = variables["tools"]
        # The tools as JSON text, for templates that read them so.
        variables["functions"] = json.dumps(tools, ensure_ascii=False, indent=2) if tools else ""
        variables[STATE_KEY] = RenderState(budget, list(argument_objects(variables["messages"])))
        try:
            return self.template.render(variables)
        except TemplateRaised as raised:
            reason = self._clean(str(raised))
            raise InvalidRequest(
                reason or "the chat template refuses these messages", param="messages"
            ) from None
        except PrintsArguments:
            raise
        except TemplateRefused as refused:
            raise InvalidRequest(str(refused), param="messages") from None
        except SecurityError:
            raise InvalidRequest(
                "the chat template does something that is not allowed", param="messages"
            ) from None
        except RecursionError:
            raise InvalidRequest(
                "the chat template recurses too deeply", param="messages"
            ) from None
        except Exception as error:
            # Untrusted code may fail in any way; each is an answer to this request and nothing more.
            reason = _scrub(self._clean(str(error)))
            raise InvalidRequest(
                f"the chat template fails on these messages: {reason}", param="messages"
            ) from None


def _check_flags(
    messages: Sequence[Mapping[str, object]],
    kwargs: Mapping[str, object],
    add_generation_prompt: bool,
    continue_final_message: bool,
) -> None:
    refused = next((name for name in kwargs if name in _RESERVED or not name.isidentifier()), None)
    if refused is not None:
        raise InvalidRequest(
            f"chat_template_kwargs may not set {refused!r}", param="chat_template_kwargs"
        )
    if not continue_final_message:
        return
    if add_generation_prompt:
        raise InvalidRequest(
            "continue_final_message and add_generation_prompt exclude each other: set add_generation_prompt to false",
            param="continue_final_message",
        )
    last = messages[-1] if messages else {}
    if (
        last.get("role") != "assistant"
        or not isinstance(last.get("content"), str)
        or last.get("tool_calls")
    ):
        raise InvalidRequest(
            "continue_final_message needs a last message of the assistant with text and no tool calls",
            param="messages",
        )


def _scrub(text: str) -> str:
    """Return an error text without paths, addresses and names of internal types."""
    return _INTERNAL_NAMES.sub("(internal)", text)[:_MAX_REASON]
