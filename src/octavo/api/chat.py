"""Chat messages -> token ids of a prompt."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from octavo.api.messages import normalise_messages, normalise_tools
from octavo.errors import InvalidRequest
from octavo.tokenization.chat_template import ChatTemplate
from octavo.tokenization.tokenizer import Tokenizer


def load_chat_template(tokenizer: Tokenizer, override: str | None = None) -> ChatTemplate | None:
    """The template that the model brings, or the text or file that `override` names; None where there is neither.

    An override is compiled at once. Raises InvalidRequest if it is neither a sound template nor a readable file.
    """
    source = tokenizer.chat_template if override is None else read_template(override)
    if source is None:
        return None
    template = compile_template(tokenizer, source)
    if override is not None:
        template.check()
    return template


def compile_template(tokenizer: Tokenizer, source: str) -> ChatTemplate:
    """A template of the caller's text, with the control tokens of `tokenizer`. It is compiled on first use."""
    return ChatTemplate(
        source,
        bos_token=_token_text(tokenizer, tokenizer.bos_token_id),
        eos_token=_token_text(tokenizer, tokenizer.eos_token_id),
        control_tokens=[
            _token_text(tokenizer, token_id) for token_id in tokenizer.control_token_ids
        ],
    )


def read_template(value: str) -> str:
    """Return a template given as text, or as the name of a file. Raises InvalidRequest if there is no such file."""
    if "{" in value or "\n" in value:
        return value
    try:
        return Path(value).expanduser().read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError, ValueError):
        raise InvalidRequest(
            f"chat template {value!r} is neither a template nor a readable UTF-8 file",
            param="chat_template",
        ) from None


def render_chat(
    template: ChatTemplate | str | None,
    tokenizer: Tokenizer,
    messages: Sequence[Mapping[str, object]],
    *,
    tools: Sequence[Mapping[str, object]] | None = None,
    add_generation_prompt: bool = True,
    continue_final_message: bool = False,
    chat_template_kwargs: Mapping[str, object] | None = None,
) -> list[int]:
    """Token ids of a conversation: exactly one BOS where the model wants one, no control token from user text.

    A template given as text is compiled for this call only. Raises InvalidRequest that names the field.
    """
    if isinstance(template, str):
        template = compile_template(tokenizer, template)
    if template is None:
        raise InvalidRequest(
            "the model has no chat template: give one with --chat-template FILE|TEXT, or complete raw text",
            param="messages",
            code="no_chat_template",
        )
    prompt = template.render(
        normalise_messages(messages),
        tools=normalise_tools(tools),
        add_generation_prompt=add_generation_prompt,
        continue_final_message=continue_final_message,
        template_kwargs=chat_template_kwargs,
    )
    ids = tokenizer.encode(
        prompt.text,
        add_special=False,
        parse_special=True,
        mark=prompt.mark if prompt.mark in prompt.text else None,
    )
    bos = tokenizer.bos_token_id
    if tokenizer.adds_bos and bos is not None and not prompt.starts_with_bos:
        ids = [bos, *ids]
    return ids


def num_characters(value: object) -> int:
    """Characters of all texts in a JSON value, such as messages or tools."""
    total = 0
    rest = [value]
    while rest:
        one = rest.pop()
        if isinstance(one, str):
            total += len(one)
        elif isinstance(one, Mapping):
            rest.extend(one.values())
        elif isinstance(one, list | tuple):
            rest.extend(one)
    return total


def _token_text(tokenizer: Tokenizer, token_id: int | None) -> str:
    return "" if token_id is None else tokenizer.token_bytes(token_id).decode("utf-8", "replace")
